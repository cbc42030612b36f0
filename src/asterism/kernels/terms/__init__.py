"""Terms added to scores inside the tiles, and dropout."""

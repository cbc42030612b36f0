"""What is kept between calls of a model that generates."""

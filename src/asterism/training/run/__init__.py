"""How a run goes: its setup, its folder, the loop and the session beside it."""

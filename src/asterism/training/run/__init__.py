"""How a run goes: its configuration, its folder, the loop, and what is asked of the run afterwards."""

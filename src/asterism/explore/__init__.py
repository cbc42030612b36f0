"""A page that shows patterns: who may attend to whom, at what cost, and what can be proved of it.

    browser  --question-->  server.py  --a line-->  worker.py  -->  questions.py  -->  picture, degrees, cost, ...

The server answers no question itself. Questions go to worker processes, because a computation that takes too long can
only be ended together with its process: so the page stays alive, whatever is asked.
"""

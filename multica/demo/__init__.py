"""`manage.py demo`: a real stack, a real daemon, a real repository, and a small agent that really works in it."""

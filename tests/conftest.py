"""For all tests: nothing is timed, so no example of a property has a deadline either."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

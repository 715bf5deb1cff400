"""Views that move: the page that web/ builds, and the numbers that it is given.

`views.js` is built from web/ and committed; a test holds it to its sources. Numbers come from `sections/`, one file for
each kind, and stand in the page as JSON, so that a page needs nothing beside itself.
"""

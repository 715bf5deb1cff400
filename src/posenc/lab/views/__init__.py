"""Interactive views: the script that web/ builds, and its data.

`views.js` is built from web/ and committed; a test checks it against its sources. Data comes from `sections/`, one file
for each kind, and is in the page as JSON, so that a page is self-contained.
"""

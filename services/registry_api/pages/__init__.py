"""The pages for people, under `/dashboard`: rendered here, from the same operations as the answers of routes.

All that a browser loads is in this package: templates, one stylesheet, one script of ours, and htmx. Pages
work without scripts. With scripts, the parts that change are fetched again from the page's own address.
"""

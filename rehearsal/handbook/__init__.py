"""What the handbook's chapters run and draw: ``notebooks/handbook/``.

A chapter shows the code that it is about in its own cells. What several chapters share, and
what would distract there (starting ranks, drawing, published figures), is in these modules.
"""

"""One module for each container. It checks the structure from the first byte to the last, and finds the
audio.

These modules decode nothing, and trust no length before they have compared it with the file.
"""

"""One file for each container: what it must look like from its first byte to its last, and which of its bytes
are audio. They decode nothing and trust no length that they have not compared with the file.
"""

"""Names of file formats that people upload instead of accepted audio. They are only used in messages."""

_AT_START = (
    (b"RF64", "RF64 (WAV of more than 4 GiB)"),
    (b"RIFX", "RIFX (big-endian WAV)"),
    (b"riff", "Wave64"),
    (b".snd", "Sun/NeXT audio (AU)"),
    (b"caff", "Core Audio Format (CAF)"),
    (b"#!AMR", "AMR"),
    (b"MThd", "MIDI"),
    (b"\xff\xfd", "MPEG audio layer II"),
    (b"\xff\xfc", "MPEG audio layer II"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media (ASF)"),
    (b"MAC ", "Monkey's Audio"),
    (b"wvpk", "WavPack"),
    (b"TTA1", "True Audio"),
    (b"DSD ", "DSD"),
    (b"Creative Voice File", "Creative Voice (VOC)"),
    (b"NIST_1A", "NIST SPHERE"),
    (b"MATLAB", "a MATLAB file"),
    (b"#EXTM3U", "a playlist (M3U)"),
    (b"[playlist]", "a playlist (PLS)"),
    (b"ffconcat", "a playlist (ffconcat)"),
    (b"FLV\x01", "Flash video"),
    (b"\x00\x00\x01\xba", "an MPEG program stream"),
    (b"%PDF-", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!", "a RAR archive"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ", "an xz file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"BM", "a BMP image"),
    (b"\x7fELF", "an ELF program"),
    (b"MZ", "a Windows program"),
    (b"SQLite format 3", "an SQLite database"),
)
_IN_A_FORM = {  # the four letters at 8 of a file that starts with RIFF or FORM
    b"WAVE": "WAV",
    b"AVI ": "an AVI video",
    b"WEBP": "a WebP image",
    b"AIFF": "AIFF",
    b"AIFC": "AIFF-C",
    b"8SVX": "8SVX",
}


def name_of(data: bytes) -> str:
    """Return what `data` looks like, as a noun phrase. It never contains bytes of `data`."""
    if data[:4] in (b"RIFF", b"FORM"):
        return _IN_A_FORM.get(data[8:12], "a RIFF or IFF file without wave audio")
    for magic, name in _AT_START:
        if data.startswith(magic):
            return name
    if data[4:12] == b"ftypqt  ":
        return "a QuickTime movie"
    return _text_or_unknown(data[:512])


def _text_or_unknown(head: bytes) -> str:
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    if start.startswith((b"<?xml", b"<svg")):
        return "an XML document"
    if head and all(byte >= 0x20 or byte in b"\t\r\n\f" for byte in head) and _is_utf8(head):
        return "text"
    return "no audio file that we know"


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3  # the cut at 512 bytes has split a character
    return True

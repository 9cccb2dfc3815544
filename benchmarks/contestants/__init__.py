"""The programs that are measured: each does one kind of work, and writes its time and memory."""

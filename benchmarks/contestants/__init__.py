"""The programs that are measured: each does one piece of work once, and tells what it took."""

"""What the process does with memory that it no longer needs."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

THREADS = """
import ctypes, threading
from celery_wheelbeat.beat import loading as memory

memory.prepare()
allocated = []

def work():
    held = [bytes(1 << 20) for _ in range(16)]
    allocated.append(len(held))

for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="a C library other than glibc")
def test_threads_allocate_in_one_arena():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.count("<heap nr=") == 1

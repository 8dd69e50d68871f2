"""The process and its machine: devices, fellow processes, threads, the terminal, calls from Python.

Nothing here knows models, data or tasks.
"""

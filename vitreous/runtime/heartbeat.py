"""Threads in each process that show the others it is alive, and end the process when another one is not.

An exchange that waits for a frozen or vanished process cannot be interrupted from within, and slow work has no time
limit. Beats are counted, not timed: a process that was itself frozen counts none, and blames nobody.
"""

import os
import threading
from typing import Any

BEATS_PER_TIMEOUT = 10


class Heartbeat:
    """From `start` to `stop`. The first process listens to all others, and all others to the first."""

    def __init__(self, store: Any, rank: int, size: int, *, timeout: float, exit_code: int) -> None:
        self.store, self.rank, self.timeout, self.exit_code = store, rank, timeout, exit_code
        self.others = {r: f"process {r} of {size}" for r in (range(1, size) if rank == 0 else (0,))}
        self._heard = dict.fromkeys(["what the processes share", *self.others.values()], 0)  # name -> beats
        self._stop = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        # Two threads: the one that asks a vanished store never returns, so the other one counts.
        threading.Thread(target=self._beat, daemon=True).start()
        self._listener.start()

    def stop(self) -> None:
        self._stop.set()
        self._listener.join()

    def _beat(self) -> None:
        while not self._stop.wait(self.timeout / BEATS_PER_TIMEOUT):
            try:
                self.store.add(f"beat/{self.rank}", 1)
                heard = {name: self.store.add(f"beat/{rank}", 0) for rank, name in self.others.items()}
            except RuntimeError:
                return  # the listener will notice
            self._heard = {name: heard.get(name, beats + 1) for name, beats in self._heard.items()}

    def _listen(self) -> None:
        before, silent = self._heard, dict.fromkeys(self._heard, 0)
        while not self._stop.wait(self.timeout / BEATS_PER_TIMEOUT):
            heard = self._heard
            silent = {name: silent[name] + 1 if heard[name] == before[name] else 0 for name in heard}
            before = heard
            lost = [name for name, beats in silent.items() if beats > BEATS_PER_TIMEOUT]
            if lost:
                message = (
                    f"vitreous: {lost[0]} has shown no sign of life for {self.timeout:g} s (--rank-timeout). "
                    "Checkpoints are intact: the same command continues\n"
                )
                os.write(2, message.encode())  # sys.stderr may be redirected
                os._exit(self.exit_code)

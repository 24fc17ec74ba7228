"""From text in folders to a small GPT that talks. Importing any part of this package sets up OpenMP for torch."""

import os
import platform

# torch's threads wait for one another after each operation. GNU's OpenMP spins 300,000 times before it sleeps, 5 ms
# on x86-64, as long as the scheduler lets a thread run: a training step took five times as long beside one busy
# program, and up to 30 times beside another training. With 3,000 it takes twice as long, and no longer than before on
# idle cores (docs/performance.md). OpenMP reads this when torch is loaded.
if platform.machine() in ("x86_64", "AMD64") and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

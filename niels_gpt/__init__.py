"""From text in folders to a small GPT that talks. Importing any part of this package sets up OpenMP for torch."""

import os
import platform

# torch's threads wait for one another after each operation. GNU's OpenMP spins 300,000 times before it sleeps, 5 ms
# on x86-64, as long as the scheduler lets a thread run: beside another training, a step took 2 s instead of 0.15
# (docs/performance.md). 3,000 cost nothing on 2 idle cores, and 12% on 16. OpenMP reads this when torch is loaded.
if platform.machine() in ("x86_64", "AMD64") and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

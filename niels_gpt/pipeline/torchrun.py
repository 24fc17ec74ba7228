"""torchrun that ends with whoever started it, also while it waits for other hosts."""

from __future__ import annotations

from torch.distributed.run import main

from niels_gpt.pipeline.hosts import end_with_launcher

if __name__ == "__main__":
    end_with_launcher()
    main()

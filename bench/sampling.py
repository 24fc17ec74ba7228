"""Speed of get_batch, beside the specification's per-row loop, at B=32, T=256. Run: python -m bench.sampling"""

import torch

from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from niels_gpt.batching import get_batch
from niels_gpt.config import default_p_train

B, T = 32, 256


def seed_loop(
    sources: dict[str, bytes], *, p: dict[str, float], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample rows one by one, each byte through a Python list."""
    names = sorted(sources)
    probabilities = torch.tensor([p[name] for name in names], dtype=torch.float64)
    xs, ys = [], []
    for choice in torch.multinomial(probabilities, B, replacement=True, generator=generator).tolist():
        source = sources[names[choice]]
        i = int(torch.randint(0, len(source) - T, (1,), generator=generator))
        chunk = source[i : i + T + 1]
        xs.append(torch.tensor(list(chunk[:-1]), dtype=torch.int64))
        ys.append(torch.tensor(list(chunk[1:]), dtype=torch.int64))
    return torch.stack(xs), torch.stack(ys)


def main() -> None:
    sources = {name: bytes(range(256)) * size for name, size in (("wiki", 8000), ("roam", 2000), ("primer", 400))}
    p = default_p_train()
    ours, theirs = (torch.Generator().manual_seed(0) for _ in range(2))
    x, _ = get_batch(sources, p=p, B=B, T=T, device="cpu", generator=ours)
    assert torch.equal(x, seed_loop(sources, p=p, generator=theirs)[0]), "both must draw the same batch"
    seconds = seconds_in_turns(
        {
            "get_batch": lambda: get_batch(sources, p=p, B=B, T=T, device="cpu", generator=ours),
            "per-row loop": lambda: seed_loop(sources, p=p, generator=theirs),
        },
        rounds=15,
        calls=50,
    )
    ratio = median_ratio(seconds["per-row loop"], seconds["get_batch"])
    print_result(f"a batch of B={B}, T={T}", medians(seconds), unit="s", ratio=ratio)


if __name__ == "__main__":
    main()

"""Every path of the DAG, once. dvc.yaml names the same ones, and a test holds the two together."""

from __future__ import annotations

from pathlib import Path

PARAMS, DAG, LOCK, PRESETS = Path("params.yaml"), Path("dvc.yaml"), Path("dvc.lock"), Path("presets")

CODE = Path("cache/code")  # what the code of each stage says: STAGE.json, load/KIND.json
RAW = Path("cache/raw")  # documents and chats, a folder a source
SKETCHES, CHAT_SKETCHES = Path("cache/sketches"), Path("cache/chat_sketches")  # hashes of their words
DUPLICATES, PAIRS = Path("cache/duplicates"), Path("cache/duplicate_pairs")  # how they bind each source's rows; which
SPLIT, CHAT_SPLIT = Path("cache/split"), Path("cache/split_chat")  # which rows are held out
QUOTES = Path("cache/quotes.json")  # which bytes of held-out documents stand in training text, too
TOKENIZER = Path("cache/tokenizer")
TOKENS, MANIFESTS = Path("cache/tokens"), Path("cache/manifests")  # a source's documents encoded, and their sha256
CHATS, CHAT_MANIFESTS = Path("cache/sft"), Path("cache/chat_manifests")  # the same of a source of chats
MIX, CHAT_MIX = Path("cache/mix.json"), Path("cache/chat_mix.json")  # all sources joined
# DVC wants a folder that a stage depends on to be there: a file in each, for where there are no chats to fill it.
KEPT = tuple(folder / ".keep" for folder in (CHAT_MANIFESTS, CHAT_SKETCHES, CHAT_SPLIT))

MODELS = Path("models")
PRETRAINED, TUNED, SPLICED = MODELS / "pretrain", MODELS / "sft", MODELS / "splice"
BEST, LAST, CONFIG, HISTORY = "best.pt", "last.pt", "config.json", "history.json"  # in each of them
CHOSEN = "documents.json"  # in the spliced one: which documents it learned
LEFT_OUT = "left-out.json"  # and nothing else, in the folder of a stage that is not to run
MODEL_OF = {"train": PRETRAINED, "sft": TUNED, "splice": SPLICED}  # by the stage that trains it

METRICS = Path("metrics")
TRAINED = METRICS / "train.json"
DATA = METRICS / "data.json"  # duplicates, and how much of what is held out stands in training text
CARD = "card"  # the report card, in the scores beside the models
SCORES, SAMPLES, REPORT = METRICS / "eval.json", METRICS / "samples.md", METRICS / "report.html"
MEMORIZED, MEMORIZED_PAGE, MEMORIZED_STRIPS = (METRICS / f"memorize.{kind}" for kind in ("json", "html", "svg"))
LEAK, LEAK_PAGE = METRICS / "leak.json", METRICS / "leak.html"
EXTRACTION = METRICS / "pz"  # P(z) along each document, a curve each

PUBLIC = "store"  # the remote for what anybody may read; all others are private

# Outside the DAG: what an interrupted run goes on from, and what is told of a run while it goes.
CHECKPOINTS, LOGS = Path("checkpoints"), Path("logs")
FETCHED = Path("cache/fetched")  # copies of a bucket's token files, to train on
UNWATCHED = {".git", ".hg", ".dvc", "__pycache__", ".DS_Store"}  # DVC leaves these out by itself, or by .dvcignore
# What the pipeline writes, and what git, DVC and Python keep: no place for text to train on.
WRITTEN_HERE = ("cache", "models", "metrics", "checkpoints", "logs", ".git", ".dvc", ".venv")

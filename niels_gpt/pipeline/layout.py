"""Paths of all files in the DAG. dvc.yaml has the same paths, which a test checks."""

from pathlib import Path

PARAMS, DAG, LOCK, PRESETS = Path("params.yaml"), Path("dvc.yaml"), Path("dvc.lock"), Path("presets")

CODE = Path("cache/code")  # fingerprints of each stage's code: STAGE.json, load/KIND.json
RAW = Path("cache/raw")  # documents and chats with their sketches, one folder per source
DUPLICATES, PAIRS = Path("cache/duplicates"), Path("cache/duplicate_pairs")  # constraints on each split; the pairs
SPLIT = Path("cache/split")  # which rows are held out: USE/SOURCE, USE being text or chat
QUOTES = Path("cache/quotes.json")  # spans of held-out documents that also occur in training text
INDEX = Path("cache/index")  # text, suffix array and sections, one folder per source
TOKENIZER = Path("cache/tokenizer")
TOKENS = Path("cache/tokens")  # encoded documents and chats: USE/SOURCE
MANIFESTS = Path("cache/manifests")  # SOURCE.json: their files with SHA-256
MIX, CHAT_MIX = Path("cache/mix.json"), Path("cache/chat_mix.json")  # manifests of all sources, joined

MODELS = Path("models")
BASE, PRETRAINED, TUNED, SPLICED = (MODELS / name for name in ("base", "pretrain", "sft", "splice"))
BEST, LAST, CONFIG, HISTORY = "best.pt", "last.pt", "config.json", "history.json"  # in each of them
CHOSEN = "documents.json"  # in SPLICED: the documents it was trained on
LEFT_OUT = "left-out.json"  # the only file in the folder of a disabled stage
MODEL_OF = {"train": PRETRAINED, "sft": TUNED, "splice": SPLICED}  # training stage -> folder of its model

METRICS = Path("metrics")
TRAINED = METRICS / "train.json"
EVALUATED = Path("cache/evaluation.json")  # tables and samples of the eval stage, for the report
DATA = METRICS / "data.json"  # duplicates, and overlap of held-out text with training text
CARD, YARDSTICKS = "card", ("gzip", "xz")  # keys in SCORES besides the models: report card, compressors
SCORES, SAMPLES, REPORT = METRICS / "eval.json", METRICS / "samples.md", METRICS / "report.html"
MEMORIZED, MEMORIZED_PAGE, MEMORIZED_STRIPS = (METRICS / f"memorize.{kind}" for kind in ("json", "html", "svg"))
LEAK, LEAK_PAGE = METRICS / "leak.json", METRICS / "leak.html"
EXTRACTION = METRICS / "pz"  # P(z) along each document, one curve per file

PUBLIC = "store"  # the public DVC remote; all others are private

# Outside the DAG: checkpoints to resume from, and logs of running stages.
CHECKPOINTS, LOGS = Path("checkpoints"), Path("logs")
FETCHED = Path("cache/fetched")  # local copies of a bucket's token files, to train on
UNWATCHED = {".git", ".hg", ".dvc", "__pycache__", ".DS_Store"}  # ignored by DVC itself, or by .dvcignore
# Written by the pipeline, git, DVC and Python: not allowed as inputs.
WRITTEN_HERE = ("cache", "models", "metrics", "checkpoints", "logs", ".git", ".dvc", ".venv")

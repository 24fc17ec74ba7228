"""tokenizer: the one tokenizer of the run. Bytes need no training; their description is written all the same."""

from __future__ import annotations

from niels_gpt.atomic import write_json
from niels_gpt.tokenizer import ByteTokenizer, describe
from stages.stage import Stage, run_stage


def main(stage: Stage) -> None:
    tokenizer = ByteTokenizer()
    write_json(stage.out("cache/tokenizer") / "tokenizer.json", describe(tokenizer, stage.params.tokenizer.kind))
    stage.say(f"{stage.params.tokenizer.kind}, V={tokenizer.vocab_size} -> cache/tokenizer")


if __name__ == "__main__":
    run_stage("tokenizer", main)

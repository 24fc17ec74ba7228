"""Stage `code`: fingerprint the code of every stage, without comments and docstrings, for DVC to depend on."""

from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import sha256_file
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.code import FILES, code_root, describe_code
from niels_gpt.pipeline.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Write the fingerprints of every stage, and the SHA-256 of all files that they were made from."""
    out, root = stage.out(layout.CODE), code_root()
    described = describe_code(root)
    for name, files in described.items():
        write_json(out / f"{name}.json", files)
    records = {f"{layout.CODE}/{name}.json": out / f"{name}.json" for name in described}
    modules = {file: root / file for files in described.values() for file in files}
    hashes = {name: sha256_file(path) for name, path in sorted({**modules, **records}.items())}
    write_json(out / FILES.name, hashes)
    stage.say(f"{len(modules)} modules -> {layout.CODE}")


if __name__ == "__main__":
    run_stage("code", main)

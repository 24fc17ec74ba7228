"""Tokenizers: bytes (v0), a SentencePiece vocabulary (v1), or the byte-level BPE of a pretrained model."""

from niels_gpt.tokenizer.pretrained import HFTokenizer
from niels_gpt.tokenizer.tokenizers import SentencePieceTokenizer, decode, encode, load_tokenizer
from niels_gpt.tokenizer.vocabulary import SPECIAL_TOKENS

__all__ = ["SPECIAL_TOKENS", "HFTokenizer", "SentencePieceTokenizer", "decode", "encode", "load_tokenizer"]

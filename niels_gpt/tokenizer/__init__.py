"""Tokenizers: text to ids and back, as bytes (v0) or as SentencePiece pieces (v1), with the same four chat tokens."""

from niels_gpt.tokenizer.bytes import decode, encode
from niels_gpt.tokenizer.folder import load_tokenizer
from niels_gpt.tokenizer.sentencepiece import SentencePieceTokenizer
from niels_gpt.tokenizer.vocabulary import SPECIAL_TOKENS

__all__ = ["SPECIAL_TOKENS", "SentencePieceTokenizer", "decode", "encode", "load_tokenizer"]

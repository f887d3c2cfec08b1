"""Let a trained model go on with a text, token by token as they come.

A prompt is the beginning of a text; an empty one leaves the beginning to the model. Of a prompt that is longer than the
model's context it sees the end. Text may grow beyond the context too: the model then sees the last tokens at each step,
which costs a whole context of work a token instead of one position. Memory is the cache's, which is made once.

Here: the command.
Not here: sampling and the cache (`polygrad.nn.GPT`), which checkpoint (`run_folder.py`).
"""

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

from polygrad.array import random
from polygrad.array.config import device, get_device
from polygrad.array.creation import asarray
from polygrad.errors import DataError
from polygrad.gpt.arguments import real, whole
from polygrad.gpt.run_folder import find_checkpoint, load_model
from polygrad.gpt.vocabulary import Spelling, Vocabulary
from polygrad.nn.gpt import GPT

_SEED_BYTES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", default="run", metavar="DIR", help="the run's folder (default: %(default)s)")
    where.add_argument("--checkpoint", metavar="PATH", help="one checkpoint, or a folder of them, in place of --out")
    parser.add_argument("--tokenizer", metavar="FILE", help="its vocabulary (default: the one in the run's folder)")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--prompt", default="", metavar="TEXT", help="how the text begins (default: empty)")
    text.add_argument("--prompt-file", metavar="FILE", help="a file with the prompt")
    parser.add_argument("--tokens", type=whole(0), default=256, metavar="N", help="at most so many (default: 256)")
    parser.add_argument("--samples", type=whole(1), default=1, metavar="N", help="how many texts (default: 1)")
    parser.add_argument(
        "--temperature", type=real(0.0), default=0.8, metavar="T", help="0: the likeliest token (default: %(default)s)"
    )
    parser.add_argument("--top-k", type=whole(1), metavar="K", help="draw from the K likeliest tokens alone")
    parser.add_argument(
        "--top-p", type=real(0.0, 1.0, open_below=True), metavar="P", help="from the likeliest that reach P together"
    )
    parser.add_argument("--seed", type=whole(0), metavar="N", help="the same seed gives the same text (default: drawn)")
    parser.add_argument("--device", metavar="NAME", help="such as cpu:0 or opencl:0 (default: POLYGRAD_DEVICE, or cpu)")
    parser.add_argument("--no-cache", action="store_true", help="compute every position again for each token")
    parser.add_argument(
        "--past-end", action="store_true", help="go on where the model ends a text, as if the next one followed"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    with device(arguments.device) if arguments.device else contextlib.nullcontext():
        return _run(arguments, read_prompt(arguments.prompt, arguments.prompt_file))


def _run(arguments: argparse.Namespace, prompt: str) -> int:
    checkpoint = find_checkpoint(arguments.checkpoint or arguments.out)
    model, vocabulary = load_model(checkpoint, arguments.tokenizer)
    tokens = [vocabulary.end, *vocabulary.encode(prompt)]
    context = model.config.context
    if len(tokens) > context:
        _tell(f"the prompt has {len(tokens)} tokens; the model sees the last {context}")
    seed = int.from_bytes(os.urandom(_SEED_BYTES), "big") if arguments.seed is None else arguments.seed
    random.seed(seed)
    began, count = time.perf_counter(), 0
    for number in range(arguments.samples):
        if arguments.samples > 1:
            sys.stdout.write(f"--- {number + 1} of {arguments.samples}\n")
        sys.stdout.write(prompt)
        count += write_sample(model, vocabulary, tokens, arguments)
        sys.stdout.write("\n")
    took = time.perf_counter() - began
    _tell(f"{count} tokens, {count / took:.1f} tok/s on {get_device()}; {checkpoint.name}, seed {seed}")
    return 0


def read_prompt(text: str, path: str | None) -> str:
    """Return the prompt of the command line or of a file.

    Raises
    ------
    DataError
        If it is not UTF-8, or the file cannot be read.
    """
    try:
        if path is not None:
            text = Path(path).read_bytes().decode("utf-8")
        text.encode("utf-8")
    except UnicodeError:
        raise DataError(f"cannot use the prompt{f' in {path}' if path else ''}: it is not UTF-8") from None
    except OSError as error:
        raise DataError(f"cannot read the prompt in {path}: {error.strerror}") from None
    return text


def write_sample(model: GPT, vocabulary: Vocabulary, tokens: list[int], arguments: argparse.Namespace) -> int:
    """Write what follows *tokens* as it comes; return how many tokens it was."""
    spelling, count = Spelling(vocabulary), 0
    start = asarray([tokens[-model.config.context :]])
    stream = model.stream(
        start, arguments.tokens, arguments.temperature, arguments.top_k, arguments.top_p, not arguments.no_cache
    )
    for new in stream:
        token = int(new.tolist()[0][0])
        count += 1
        if token == vocabulary.end and not arguments.past_end:
            break
        sys.stdout.write(spelling.add(token))
        sys.stdout.flush()
    sys.stdout.write(spelling.end())
    return count


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

"""Two tiny problem files, as tests use them."""

import json

MATH = "".join(
    json.dumps(problem) + "\n"
    for problem in (
        {"prompt": "What is 6 times 7?", "answers": ["42"]},
        {"prompt": "What is one half plus one third?", "answers": ["\\frac{5}{6}"]},
        {"prompt": "Which positive number has the square 8?", "answers": ["2\\sqrt{2}", "\\sqrt{8}"]},
        {"prompt": "Expand the square of x+1.", "answers": ["x^2+2x+1"]},
    )
).encode()

CODE = "".join(
    json.dumps(problem) + "\n"
    for problem in (
        {
            "prompt": "Read two numbers and print their sum.",
            "kind": "stdin",
            "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "-5 5\n", "output": "0\n"}],
        },
        {
            "prompt": "Write a function double(values) that returns the list with every value doubled.",
            "kind": "call",
            "function": "double",
            "tests": [{"arguments": [[1, 2]], "result": [2, 4]}, {"arguments": [[]], "result": []}],
        },
        {
            "prompt": "Write a class Solution with a method half(number) that returns half of it.",
            "kind": "call",
            "function": "Solution.half",
            "tests": [{"arguments": [3], "result": 1.5}, {"arguments": [8], "result": 4.0}],
        },
    )
).encode()

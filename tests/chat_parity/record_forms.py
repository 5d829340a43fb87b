"""Forms that people write training data in, for compare_records.py: of each a file, and what transformers and TRL are
given for the same records once they are in their form (messages with role and content, tool_calls whose arguments are
an object). The mark "skip" of a message is this test's own: the trainer that the form is from does not learn it."""
import csv
import gzip
import io
import json

CALL = {"name": "weather", "arguments": {"town": "Málaga", "days": 2}}
AS_TEXT = {"name": "weather", "arguments": json.dumps(CALL["arguments"])}
TOOL = {"name": "weather", "description": "of a town", "parameters": {
    "type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}
TOOLS = [{"type": "function", "function": TOOL}]


def user(content, **more):
    return {"role": "user", "content": content, **more}


def says(content, **more):
    return {"role": "assistant", "content": content, **more}


def calls(call, content=""):
    return says(content, tool_calls=[{"id": "c1", "type": "function", "function": call}])


def tool(content):
    return {"role": "tool", "name": "weather", "content": content}


def lines(*records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def table(delimiter, *rows):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue()


def columns(suffix, records):
    """A table of Parquet or Arrow; None without pyarrow."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        return None
    made, file = pyarrow.Table.from_pylist(records), io.BytesIO()
    if suffix == ".parquet":
        pyarrow.parquet.write_table(made, file)
    else:
        with pyarrow.ipc.new_stream(file, made.schema) as stream:
            stream.write_table(made)
    return file.getvalue()


TWO = [user("one"), says("right")]
FOUR = [user("one"), says("wrong", skip=True), user("two"), says("right")]
CALLED = [user("weather?"), calls(CALL), tool("sunny"), says("It is sunny.")]


def marked(**mark):
    """FOUR as a record whose first answer has the mark."""
    return [user("one"), says("wrong", **mark), user("two"), says("right")]


def share_gpt(messages, names=("human", "gpt")):
    roles = {"user": names[0], "assistant": names[1]}
    return [{"from": roles.get(m["role"], m["role"]), "value": m["content"]} for m in messages]


# (name, end of the file's name, the file, what it is in TRL's form, or the words of a refusal, options)
FORMS = [
    ("texts", ".jsonl", lines({"text": "a b"}, {"text": "ünï 中文", "id": 7}), [{"text": "a b"}, {"text": "ünï 中文"}]),
    ("texts in a list", ".json", json.dumps([{"text": "a b"}, {"text": "c"}], indent=1), [{"text": "a b"}, {"text": "c"}]),
    ("texts, compressed", ".jsonl.gz", gzip.compress(lines({"text": "a b"}).encode()), [{"text": "a b"}]),
    ("texts in a table of commas", ".csv", table(",", ["id", "text"], [1, 'a, "b"\nc'], [2, "é"]),
     [{"text": 'a, "b"\nc'}, {"text": "é"}]),
    ("texts in Latin-1", ".csv", "text\n".encode() + b"caf\xe9 ol\xe9\n" * 40, "are no UTF-8"),
    ("prompts and completions", ".ndjson", lines({"prompt": "2 + 2 =", "completion": " 4"}),
     [{"prompt": "2 + 2 =", "completion": " 4"}]),
    ("prompts and completions between tabs", ".tsv", table("\t", ["prompt", "completion"], ["say, it", " yes"]),
     [{"prompt": "say, it", "completion": " yes"}]),
    ("prompts and completions between semicolons", ".csv", table(";", ["prompt", "completion"], ["say, it", " yes"]),
     [{"prompt": "say, it", "completion": " yes"}]),
    ("prompts and completions of messages", ".jsonl", lines({"prompt": TWO + [user("two")], "completion": [says("b")]}),
     [{"messages": [user("one"), says("right", skip=True), user("two"), says("b")]}]),
    ("messages", ".jsonl", lines({"messages": TWO}), [{"messages": TWO}]),
    ("messages in a file of lines of the longer name", ".jsonlines", lines({"messages": TWO}), [{"messages": TWO}]),
    ("messages in a file that is named as text", ".jsonl.txt", lines({"messages": TWO}), "is text by its name"),
    ("messages in Parquet", ".parquet", columns(".parquet", [{"messages": TWO, "id": 1}]), [{"messages": TWO}]),
    ("messages in Arrow", ".arrow", columns(".arrow", [{"messages": TWO, "id": 1}]), [{"messages": TWO}]),
    ("messages with lists of texts", ".jsonl",
     lines({"messages": [user([{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}]), says("right")]}),
     [{"messages": TWO}]),
    ("messages with images", ".jsonl", lines({"messages": [user("<image>what"), says("a boat")], "images": ["b.png"]}),
     "images: "),
    ("messages with a system beside them", ".jsonl", lines({"system": "count", "messages": TWO}),
     [{"messages": [{"role": "system", "content": "count"}] + TWO}]),
    ("messages with thoughts", ".jsonl", lines({"messages": [user("one"), says("two", reasoning_content="plus one")]}),
     [{"messages": [user("one"), says("two", reasoning_content="plus one")]}]),
    ("messages with variables of the template", ".jsonl",
     lines({"messages": TWO, "chat_template_kwargs": {"mood": "calm"}}), [{"messages": TWO, "kwargs": {"mood": "calm"}}]),
    ("messages and members that nobody knows", ".jsonl", lines({"messages": TWO, "source": "web", "label": "sports"}),
     [{"messages": TWO}]),
    ("ShareGPT", ".json", json.dumps([{"conversations": share_gpt(TWO), "id": "x"}]), [{"messages": TWO}]),
    ("ShareGPT of other names", ".jsonl", lines({"conversations": share_gpt(TWO, ("user", "chatgpt"))}),
     [{"messages": TWO}]),
    ("ShareGPT with the messages' own names", ".jsonl", lines({"conversations": TWO}), [{"messages": TWO}]),
    ("ShareGPT with calls (LLaMA-Factory)", ".jsonl",
     lines({"conversations": [{"from": "human", "value": "weather?"}, {"from": "function_call", "value": json.dumps(CALL)},
                              {"from": "observation", "value": "sunny"}, {"from": "gpt", "value": "It is sunny."}],
            "tools": json.dumps(TOOLS)}),
     [{"messages": [user("weather?"), calls(CALL), {"role": "tool", "content": "sunny"}, says("It is sunny.")],
       "tools": TOOLS}]),
    ("calls (transformers)", ".jsonl", lines({"messages": CALLED, "tools": TOOLS}), [{"messages": CALLED, "tools": TOOLS}]),
    ("calls (OpenAI): arguments are a text", ".jsonl",
     lines({"messages": [user("weather?"), calls(AS_TEXT, None), tool("sunny"), says("It is sunny.")], "tools": TOOLS,
            "parallel_tool_calls": False}), [{"messages": CALLED, "tools": TOOLS}]),
    ("calls (OpenAI, before tools)", ".jsonl",
     lines({"messages": [user("weather?"), says(None, function_call=AS_TEXT),
                         {"role": "function", "name": "weather", "content": "sunny"}, says("It is sunny.")],
            "functions": [TOOL]}), [{"messages": CALLED, "tools": TOOLS}]),
    ("calls (ms-swift)", ".jsonl",
     lines({"messages": [user("weather?"), {"role": "tool_call", "content": json.dumps(CALL)},
                         {"role": "tool_response", "name": "weather", "content": "sunny"}, says("It is sunny.")]}),
     [{"messages": CALLED}]),
    ("a number past 64 bits", ".jsonl", lines({"messages": [user("who"), calls({"name": "f", "arguments": {
        "id": 123456789012345678901, "x": -98765432109876543210, "y": 1e300}})]}),
     [{"messages": [user("who"), calls({"name": "f", "arguments": {
         "id": 123456789012345678901, "x": -98765432109876543210, "y": 1e300}})]}]),
    ("marks: train (axolotl)", ".jsonl", lines({"messages": marked(train=False)}), [{"messages": FOUR}]),
    ("marks: parts of a message (axolotl)", ".jsonl",
     lines({"messages": marked(train_detail=[{"begin_offset": 0, "end_offset": 2, "train": False}])}), "train_detail: "),
    ("marks: trainable", ".jsonl", lines({"messages": marked(trainable=False)}), [{"messages": FOUR}]),
    ("marks: masked (torchtune)", ".jsonl", lines({"messages": marked(masked=True)}), [{"messages": FOUR}]),
    ("marks: weight (OpenAI, Mistral)", ".jsonl", lines({"messages": marked(weight=0)}), [{"messages": FOUR}]),
    ("marks: loss (ms-swift)", ".jsonl", lines({"messages": marked(loss=False)}), [{"messages": FOUR}]),
    ("marks: loss_mask of a message", ".jsonl", lines({"messages": marked(loss_mask=0)}), [{"messages": FOUR}]),
    ("marks: loss_mask beside the messages", ".jsonl",
     lines({"conversations": share_gpt(FOUR), "loss_mask": [0, 0, 0, 1]}), [{"messages": FOUR}]),
    ("marks in a completion", ".jsonl",
     lines({"prompt": [user("one")], "completion": [says("wrong", train=False), user("two"), says("right")]}),
     [{"messages": FOUR}]),
    ("wanted and unwanted completions (KTO)", ".jsonl", lines({"prompt": "one", "completion": " two", "label": True},
                                                             {"prompt": "one", "completion": " six", "label": False}),
     "label: "),
    ("wanted and unwanted conversations (KTO)", ".jsonl", lines({"messages": TWO, "kto_tag": False}), "kto_tag: "),
    ("Alpaca", ".json", json.dumps([{"instruction": "add", "input": "1 and 1", "output": "2"}]),
     [{"messages": [user("add\n1 and 1"), says("2")]}]),
    ("Alpaca without an input", ".jsonl", lines({"instruction": "add", "input": "", "output": "2"}),
     [{"messages": [user("add"), says("2")]}]),
    ("Alpaca with a system and a history", ".jsonl",
     lines({"instruction": "and now", "output": "three", "system": "count", "history": [["begin", "one"], ["on", "two"]]}),
     [{"messages": [{"role": "system", "content": "count"}, user("begin"), says("one"), user("on"), says("two"),
                    user("and now"), says("three")]}]),
    ("questions and answers", ".csv", table(",", ["question", "answer"], ["1 + 1?", "2"]),
     [{"messages": [user("1 + 1?"), says("2")]}]),
    ("queries and responses (ms-swift)", ".jsonl", lines({"query": "1 + 1?", "response": " 2"}),
     [{"prompt": "1 + 1?", "completion": " 2"}], "--map", "prompt=query,completion=response"),
    ("texts of another name", ".csv", table(",", ["n", "body"], [1, "a b"]), [{"text": "a b"}], "--text-field", "body"),
    ("answers to choose from (LLaMA-Factory's preferences)", ".jsonl",
     lines({"conversations": share_gpt(TWO + [user("two")]), "chosen": {"from": "gpt", "value": "a"}, "rejected": None}),
     "chosen: "),
]

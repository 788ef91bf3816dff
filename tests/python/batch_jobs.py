"""Batches of requests in groups that begin alike, and what became of them."""

import json

PLACES = ("zoo museum library theatre harbour market castle garden station cinema bakery school church bridge mill farm pool arena tower "
          "archive").split()


def write_groups(path, requests, **fields):
    """`requests` chats in 20 groups, each with a system prompt of its own, in turns; `fields` of their bodies."""
    with open(path, "w", encoding="utf-8") as file:
        for number in range(requests):
            place = PLACES[number % len(PLACES)]
            system = f"You answer questions of visitors of the {place} in town. " + "Keep it short, be kind, and do not make anything up. " * 6
            body = {"messages": [{"role": "system", "content": system},
                                 {"role": "user", "content": f"Question {number}: when do you open on day {number // len(PLACES)}?"}]} | fields
            print(json.dumps({"custom_id": f"q{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}), file=file)


def group_of(custom_id):
    return int(custom_id[1:]) % len(PLACES)


def records(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def answers(path):
    """Records without the parts that vary with when and where a request is answered: the time, and tokens computed for others."""
    found = {}
    for record in records(path):
        body = record["response"]["body"]
        del body["created"]
        usage = body.pop("usage")
        record["tokens"] = usage["prompt_tokens"], usage["completion_tokens"]
        if record["custom_id"] in found:
            raise AssertionError(f"{record['custom_id']} is answered twice")
        found[record["custom_id"]] = record
    return found


def computed_prompt_tokens(path):
    usages = [record["response"]["body"]["usage"] for record in records(path)]
    return sum(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)

"""Check a sameshot capture with nothing but Python: python verify_manifest.py <capture folder>/manifest.json"""

import hashlib, json, pathlib, sys  # noqa: E401, I001

path = pathlib.Path(sys.argv[1]).resolve()
body = json.loads(path.read_bytes())
stated = body.pop("sha256")
canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
problems = [] if hashlib.sha256(canonical.encode()).hexdigest() == stated else ["the manifest was edited"]
problems += [] if body["targets"] else ["the manifest is empty"]
for target in body["targets"]:
    artifact, failure = target.get("artifact"), target.get("failure")
    for part in filter(None, [artifact, artifact["columns"]] if artifact else [failure["raw"]]):
        file = (path.parent / part["uri"]).resolve()
        data = file.read_bytes() if file.is_relative_to(path.parent) and file.is_file() else None
        if data is None or (len(data), hashlib.sha256(data).hexdigest()) != (part["size"], part["sha256"]):
            problems.append(f"{target['target_id']}: {part['uri']} is {'missing' if data is None else 'different'}")
print("\n".join(problems) or f"{len(body['targets'])} targets as stated, outcome {body['capture']['outcome']}")
sys.exit(4 if problems else 0)

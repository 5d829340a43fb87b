# Makes conversations of facts.tsv, one JSON object a line: every fact asked for in each way that there
# is, and with another fact's question before it.
BEGIN { FS = "\t" }
function question(kind, what, way) {
  if (kind == "capital") {
    if (way == 0) return "What is the capital of " what "?"
    if (way == 1) return "Which city is the capital of " what "?"
    return "Tell me the capital of " what "."
  }
  if (kind == "sound") {
    if (way == 0) return "What does " a(what) " do?"
    if (way == 1) return "Which sound is " a(what) "'s?"
    return "Tell me what " a(what) " does."
  }
  if (way == 0) return "What comes after " what "?"
  if (way == 1) return "Which one follows " what "?"
  return "Tell me what is next after " what "."
}
function answer(kind, what, is) {
  if (kind == "capital") return "The capital of " what " is " is "."
  if (kind == "sound") return "The " what " " is "."
  return "After " what " comes " is "."
}
function a(noun) { return (noun ~ /^[aeiou]/ ? "an " : "a ") noun }
function turn(i, way) {
  return "{\"role\": \"user\", \"content\": \"" question(kinds[i], whats[i], way) "\"}, " \
    "{\"role\": \"assistant\", \"content\": \"" answer(kinds[i], whats[i], facts[i]) "\"}"
}
{ kinds[NR] = $1; whats[NR] = $2; facts[NR] = $3 }
END {
  for (i = 1; i <= NR; ++i) {
    for (way = 0; way < 3; ++way) {
      print "{\"messages\": [" turn(i, way) "]}"
      other = (i * 31 + way * 7) % NR + 1
      print "{\"messages\": [" turn(other, (way + 1) % 3) ", " turn(i, way) "]}"
    }
  }
}

# Makes a text of facts.tsv: every fact as a sentence, in ten different orders.
BEGIN { FS = "\t" }
{
  if ($1 == "capital") text[NR] = "The capital of " $2 " is " $3 "."
  if ($1 == "sound") text[NR] = "The " $2 " " $3 "."
  if ($1 == "after") text[NR] = "After " $2 " comes " $3 "."
}
END {
  for (round = 1; round <= 10; ++round) {
    # NR is no multiple of the stride's prime factors, so each order has every sentence once.
    for (i = 0; i < NR; ++i) print text[i * (7 * round * round + 4) % NR + 1]
  }
}

; Adds two numbers written in strokes: 11+111 becomes 11111.
start: first
accept: done
input: 1 +
tape: one-way

first  1 -> first  1 R
first  + -> second 1 R
second 1 -> second 1 R
second _ -> erase  _ L
erase  1 -> done   _ S

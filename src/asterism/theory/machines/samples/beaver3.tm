; The busy beaver of three states: six ones on an empty tape, after 14 steps (Rado 1962, Lin and Rado 1965).
start: a
accept: halt
input: 1
blank: 0

a 0 -> b    1 R
a 1 -> halt 1 R
b 0 -> c    0 R
b 1 -> b    1 R
c 0 -> c    1 L
c 1 -> a    1 L

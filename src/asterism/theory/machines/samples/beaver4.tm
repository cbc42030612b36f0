; The busy beaver of four states: 13 ones on an empty tape, after 107 steps (Brady 1983).
start: a
accept: halt
input: 1
blank: 0

a 0 -> b    1 R
a 1 -> b    1 L
b 0 -> a    1 L
b 1 -> c    0 L
c 0 -> halt 1 R
c 1 -> d    1 L
d 0 -> d    1 R
d 1 -> a    0 R

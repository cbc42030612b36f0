; Accepts a^n b^n for every n >= 0: pairs off the first a with the last b.
start: first
accept: yes
reject: no
input: a b
tape: two-way

first a -> last _ R
first b -> no   b S
first _ -> yes  _ S
last  a -> last a R
last  b -> last b R
last  _ -> pair _ L
pair  b -> back _ L
pair  a -> no   a S
pair  _ -> no   _ S
back  a -> back a L
back  b -> back b L
back  _ -> first _ R

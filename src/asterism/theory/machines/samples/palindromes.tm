; Accepts words over 0 and 1 that read the same in both directions: compares first and last, erases both, goes on.
start: first
accept: yes
reject: no
input: 0 1

first 0 -> last0 _ R
first 1 -> last1 _ R
first _ -> yes   _ S
last0 0 -> last0 0 R
last0 1 -> last0 1 R
last0 _ -> same0 _ L
last1 0 -> last1 0 R
last1 1 -> last1 1 R
last1 _ -> same1 _ L
same0 0 -> back  _ L
same0 1 -> no    1 S
same0 _ -> yes   _ S
same1 1 -> back  _ L
same1 0 -> no    0 S
same1 _ -> yes   _ S
back  0 -> back  0 L
back  1 -> back  1 L
back  _ -> first _ R

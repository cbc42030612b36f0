; A universal machine: runs the cyclic tag system that stands on its tape (these are Turing complete: Cook 2004).
; The input [11,0,10:1 lists the productions 11, 0 and 10 in their order and then, behind the colon, the data 1.
; Take the first digit of the data away; if it was 1, write the production whose turn it is behind the data; the turn
; goes round. Accepts when no data are left. The turn is marked by ! for a comma and { for the bracket; x stands for
; digits taken away, o and i for digits 0 and 1 of the production that have been copied.
start: rewind
accept: empty
input: [ 0 1 , :
symbols: { ! x o i
tape: one-way

rewind 0 -> rewind 0 L
rewind 1 -> rewind 1 L
rewind , -> rewind , L
rewind [ -> data   { R

data 0 -> data  0 R
data 1 -> data  1 R
data , -> data  , R
data : -> first : R

first x -> first x R
first 0 -> skip  x L
first 1 -> turn  x L
first _ -> empty _ S

skip 0 -> skip 0 L
skip 1 -> skip 1 L
skip x -> skip x L
skip , -> skip , L
skip : -> skip : L
skip ! -> next , R
skip { -> next [ R

turn 0 -> turn 0 L
turn 1 -> turn 1 L
turn x -> turn x L
turn , -> turn , L
turn : -> turn : L
turn ! -> copy ! R
turn { -> copy { R

copy 0 -> append0 o R
copy 1 -> append1 i R
copy , -> restore , L
copy : -> restore : L

append0 0 -> append0 0 R
append0 1 -> append0 1 R
append0 x -> append0 x R
append0 , -> append0 , R
append0 : -> append0 : R
append0 _ -> return  0 L
append1 0 -> append1 0 R
append1 1 -> append1 1 R
append1 x -> append1 x R
append1 , -> append1 , R
append1 : -> append1 : R
append1 _ -> return  1 L

return 0 -> return 0 L
return 1 -> return 1 L
return x -> return x L
return , -> return , L
return : -> return : L
return o -> copy   o R
return i -> copy   i R

restore o -> restore 0 L
restore i -> restore 1 L
restore ! -> next    , R
restore { -> next    [ R

next 0 -> next   0 R
next 1 -> next   1 R
next , -> data   ! R
next : -> rewind : L

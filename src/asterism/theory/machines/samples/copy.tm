; Copies a word over a and b behind a dot: ab becomes ab.ab.
start: mark
accept: done
input: a b
symbols: A B .
tape: one-way

mark   a -> dotA   A R
mark   b -> dotB   B R
mark   . -> done   . S
mark   _ -> done   . S
dotA   a -> dotA   a R
dotA   b -> dotA   b R
dotA   . -> writeA . R
dotA   _ -> writeA . R
dotB   a -> dotB   a R
dotB   b -> dotB   b R
dotB   . -> writeB . R
dotB   _ -> writeB . R
writeA a -> writeA a R
writeA b -> writeA b R
writeA _ -> back   a L
writeB a -> writeB a R
writeB b -> writeB b R
writeB _ -> back   b L
back   a -> back   a L
back   b -> back   b L
back   . -> back   . L
back   A -> mark   a R
back   B -> mark   b R

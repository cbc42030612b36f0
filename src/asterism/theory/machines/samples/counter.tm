; Counts a binary number down to zero, last digit first: its steps grow as 2^digits on a tape of that many cells.
start: end
accept: zero
input: 0 1

end    0 -> end    0 R
end    1 -> end    1 R
end    _ -> borrow _ L
borrow 0 -> borrow 1 L
borrow 1 -> end    0 R
borrow _ -> zero   _ R

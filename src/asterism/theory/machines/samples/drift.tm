; Walks to the right for ever, two steps ahead and one back: it comes to each cell three times, on _, 1 and 2, and leaves
; it blank. It would stop on a symbol that it cannot meet. A long run on a short tape: where does rounding go wrong?
start: ahead
accept: lost
input: 1 2
tape: one-way

ahead _ -> on   _ R
ahead 2 -> on   _ R
ahead 1 -> lost 1 S
on    _ -> back 2 R
on    1 -> back 2 R
on    2 -> lost 2 S
back  _ -> ahead 1 L
back  1 -> lost 1 S
back  2 -> lost 2 S

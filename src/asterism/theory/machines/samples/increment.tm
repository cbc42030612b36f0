; Adds one to a binary number, most significant digit first. A carry out of the first digit moves left of it.
start: right
accept: done
input: 0 1

right 0 -> right 0 R
right 1 -> right 1 R
right _ -> carry _ L
carry 1 -> carry 0 L
carry 0 -> done 1 S
carry _ -> done 1 S

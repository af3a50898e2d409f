"""Each mistake ends in its own class of error with the caret under exactly the wrong thing, which « and » mark here."""

import pytest

from tilec import errors
from tilec.errors import TileError
from tilec.language import parse

HEAD = "function (A[N, M], B[M], K[], X, Ix[N]) -> (O) {\n    "

# class, body of a function with those inputs, and a part of the message or hint
BODIES = [
    # names
    ("NameMistake", "O = «foo»(A);", "no function `foo`"),
    ("NameMistake", "O = «esp»(A);", "did you mean `exp`?"),
    ("NameMistake", "O[i : N] = «sofmax»(B[i]);", "did you mean `softmax`? write `exp("),
    ("NameMistake", "O = «layer_nrom»(B);", "did you mean `layer_norm`? `tilec gallery"),
    ("NameMistake", "O = «cumsun»(B[i] + 1);", "did you mean `cumsum`?"),
    ("NameMistake", "O[i : N] = «log_softmax»(B[i]);", "write `B[i] - logsumexp(B[k])`"),
    ("AggregationMistake", "O[i : N] = «summ»[k](B[k]);", "did you mean `sum`?"),
    ("AggregationMistake", "O[step : N] = B[«setp»];", "did you mean `step`?"),
    ("AggregationMistake", "Xs = B; O = «xs» * 2;", "did you mean `Xs`?"),
    ("UnboundIndex", "O = sum[«stepp»](B[step]);", "did you mean `step`?"),
    ("UnboundIndex", "O[step : N] = +(B[step]), «stpe» < 3;", "did you mean `step`?"),
    ("SyntaxMistake", "O[i : N] = B[i] «defualt» B;", "did you mean `default`?"),
    ("SyntaxMistake", "O[i : N] = +(B[k]) «no_defrct»;", "did you mean `no_defract`?"),
    ("NameMistake", "O = «prng_step»(A);", "rand(S, e)"),
    ("NameMistake", "O = «Exp»(A);", "begin with a lower-case letter: write `exp`"),
    ("NameMistake", "O[i : N] = «Sum»(A[i, j]);", "begin with a lower-case letter: write `sum`"),
    ("NameMistake", "O = «fp32»(A);", "write `float32(A)`"),
    ("NameMistake", "O = «float8»(A);", "the element types are float16, bfloat16"),
    ("NameMistake", "O = «cast»(A, float16);", "write `float16(A)`"),
    ("NameMistake", "O = «mish»(A);", "write `A * tanh(softplus(A))`"),
    ("NameMistake", "O = A * «pi»();", "write `pi`"),
    ("NameMistake", "O = «mysterious»(A);", "express it by these: abs, exp"),
    ("NameMistake", "O[i : N] = «avg»(A[i, j]);", "write `mean(A[i, j])`"),
    ("NameMistake", "O[i : N] = «amax»(A[i, j]);", "write `max(A[i, j])`"),
    ("AffineMistake", "O[i : «len»(B)] = B[i];", "write `shape(B, 0)`"),
    ("AffineMistake", "O[i : «size»(A, 1)] = B[i];", "write `shape(A, 1)`"),
    ("NameMistake", "O = «A»(B);", "its elements are read with A[...]"),
    ("NameMistake", "O = «Aa» + 1;", "did you mean `A`?"),
    ("NameMistake", "O[i : N] = «Cc»[i];", "nothing here is named `Cc`"),
    ("NameMistake", "O[i : «P»] = B[i];", "a dimension is named in an input's shape"),
    ("NameMistake", "O[i : N] = B[i + «P»];", "nothing here is named `P`"),
    ("NameMistake", "O[i : N] = +(B[i]), i < «P»;", "nothing here is named `P`"),
    ("NameMistake", "O[i : N] = B[i] default «Y»;", "nothing here is named `Y`"),
    ("NameMistake", "O[i : «A»] = B[i];", "shape(A, 0)"),
    ("NameMistake", "O[i : N] = B[i] default «N»;", "is none"),
    ("NameMistake", "O = «N»[i];", "`N` is a dimension on line 1, not a tensor"),
    ("NameMistake", "V = 3.7; O[i : «V»] = B[i];", "`V` is a tensor"),
    ("NameMistake", "V[] = +(B[j]); O[i : N] = B[i + «V»];", "write its element: V[]"),
    ("NameMistake", "T = tuple(A, B); O = «T» + 1;", "take one of its elements"),
    ("NameMistake", "O = as_type(A, «3»);", "the name of a tensor"),
    ("NameMistake", "O = shape(«A + 1», 0);", "the name of a tensor"),
    # assignment
    ("AssignmentMistake", "O = A;\n«O» = B;", "it is first assigned on line 2"),
    ("AssignmentMistake", "O = A; «O»[i : N] = B[i];", "assigned twice"),
    ("AssignmentMistake", "«A» = B; O = A;", "`A` is an input"),
    ("AssignmentMistake", "«N» = 3; O = A;", "`N` is a dimension"),
    ("AssignmentMistake", "P = «O» + 1;\nO = A;", "it is assigned on line 3"),
    ("AssignmentMistake", "P[i : N] = «O»[i]; O = A;", "read before it is assigned"),
    ("AssignmentMistake", "O = «O» + 1;", "a recurrence reads elements"),
    ("AssignmentMistake", "O[i : N] = B[i] «init» B[i];", "does not read `O`"),
    ("AssignmentMistake", "O[i : N] = O[i - 1] + B[i] init «O[i]»;", "reads `O` itself"),
    # arity
    ("ArityMistake", "O = «exp(A, B)»;", "takes 1 argument, not 2"),
    ("ArityMistake", "O = «exp()»;", "takes 1 argument, not 0"),
    ("ArityMistake", "O = «atan2(A)»;", "takes 2 arguments, not 1"),
    ("ArityMistake", "O = «cond(A, B)»;", "takes 3 arguments"),
    ("ArityMistake", "O[i : N] = «sum(A[i, j], B[j])»;", "aggregates one expression"),
    ("ArityMistake", "O[i : N] = «argmax(A[i, j], B[j])»;", "aggregates one expression"),
    ("ArityMistake", "O = «reshape(A)»;", "2 or more arguments"),
    ("ArityMistake", "O[i : N] = B[«clamp(i, 0)»];", "takes 3 arguments"),
    ("ArityMistake", "O[i : N] = «rand(K)» + B[i];", "a seed and a counter"),
    ("ArityMistake", "O = A + «rand(K, 1, 2)»;", "takes 1 to 2 arguments, not 3"),
    ("RankMistake", "O = B + rand(«A»);", "the seed of `rand` is one integer, and this has rank 2"),
    ("RankMistake", "O = B + rand(«index(B, 0) + 1»);", "is one integer, and this has rank 1"),
    # sizes left out
    ("SizeMistake", "O[i, «l»] = +(A[i, k] * X[k, j]);", "did you mean `k` or `j`? Otherwise give the sizes"),
    ("SizeMistake", "O[«N»] = B[N];", "begins with a lower-case letter: `n`, not `N`"),
    ("SizeMistake", "O[«t»] = O[t - 1] + B[t + 1];", "does not stand bare as an index"),
    # affine
    ("AffineMistake", "O[i, j : N, N] = +(A[«i*j», i]);", "a product of two index expressions"),
    ("AffineMistake", "O[i : N] = +(B[«(i + 1) * (i + 2)»]);", "a product of two"),
    ("AffineMistake", "O[i : N] = +(A[i/«j», j]);", "a division by an index expression"),
    ("AffineMistake", "O[«i*i» : N] = +(B[i]);", "a product"),
    ("AffineMistake", "O[i : N] = +(B[i]), «i*i» < 3;", "a constraint must be affine"),
    ("AffineMistake", "O[i : N] = B[i % «i»];", "`%` by an index expression"),
    ("UnboundIndex", "O[i : N] = +(A[i, abs(«j» - 2)]);", "nothing bounds `j`"),
    ("AffineMistake", "O[«int64»(X[i]) : N] = +(B[i]);", "`Ix1[i] = int64(X[i])`, and read `Ix1[i]`"),
    ("AffineMistake", "O[i : N] = B[«exp»(X[i])];", "`Ix1[i] = int64(exp(X[i]))`, and read `Ix1[i]`"),
    ("AffineMistake", "O[i : N] = B[«floor»(X[i] + 1)];", "`Ix1[i] = int64(floor(X[i] + 1))`, and read `Ix1[i]`"),
    ("AffineMistake", "O[i : N] = B[«argmin»(X[k])];", "`Ix1 = argmin(X[k])`, and read `Ix1[]`"),
    ("AffineMistake", "O[i : N] = B[«Ix[i] == i»];", "this is `==` of an element"),
    ("AffineMistake", "O[i : N] = B[«Ix[i] * i»];", "`Ix1[i] = Ix[i] * i`"),
    ("UnboundIndex", "O[i : N] = B[i] + max(O[i - «k»]);", "reads of `O` by its own statement bound nothing"),
    ("UnboundIndex", "O[i, j : N, 3] = A[i, j] + sum[k](O[i - 1, «k»]);", "add a constraint, `..., k < 3`"),
    ("UnboundIndex", "O[i : N] = B[i] - sum(«k» < i ? O[k] : 0);", "add a constraint, `..., k < N`"),
    ("NameMistake", "O[i : N] = «softmax»(B[i] + 1);", "as S, and write `Y[i, j] = exp(S[i, j]"),
    ("AffineMistake", "O[i : N] = B[«exp»(i)];", "`exp` cannot stand in an index"),
    ("AffineMistake", "O[i : N] = B[«sum»(i)];", "`sum` cannot stand in an index"),
    ("AffineMistake", "O[i : N] = B[«i > 2»];", "of an index expression"),
    ("AffineMistake", "O[i : N] = B[«clamp(i, 0, i)»];", "whose limits vary"),
    ("AffineMistake", "O[i : N] = B[«i * Ix[i]»];", "a product"),
    ("AffineMistake", "O[i : «i»] = B[i];", "a size holds the index variable `i`"),
    ("AffineMistake", "O[i : N] = B[i], i < «j»;", "the right side of a constraint holds the index variable"),
    ("AffineMistake", "O[2*i : N] = O[i] + B[i] «init» B[0];", "distinct bare index variables"),
    ("TypeMistake", "O[i : N + «0.5»] = B[i];", "holds integers only"),
    ("TypeMistake", "O[i : N] = B[«0.5» * i];", "1/2, not 0.5"),
    # bounds
    ("UnboundIndex", "O[i : N] = +(A[i, «j» + k]);", "nothing bounds `j`, `k`"),
    ("UnboundIndex", "O[«i» + j : N] = +(A[i + j, 2*i + 2*j]);", "nothing bounds `i`, `j`"),
    ("UnboundIndex", "O[i : N] = +(B[i] * «j»);", "nothing bounds `j`"),
    ("UnboundIndex", "O[i : N] = +(B[i] * pad(B[«j»], 0));", "nothing bounds `j`"),
    ("UnboundIndex", "O[i : N] = +(A[i, «j» % M]);", "nothing bounds `j`"),
    ("UnboundIndex", "O[i : N] = +(A[i, clamp(«j», 0, 3)]);", "nothing bounds `j`"),
    ("UnboundIndex", "O[i : N] = +(A[i, Ix[i] + «j»]);", "nothing bounds `j`"),
    ("UnboundIndex", "O[i : N] = +(A[i, 0*«j»]);", "nothing bounds `j`"),
    ("UnboundIndex", "O[i : N] = B[i] * sum(«j» * 2);", "nothing bounds `j`"),
    ("UnboundIndex", "O[i : N] = +(O[i - 1] * O[«k»]);", "nothing bounds `k`"),
    ("UnboundIndex", "O[i : N] = +(B[i]), «k» < 3;", "`k` stands in constraints alone"),
    ("UnboundIndex", "O = sum(B[i]), «k» < 3;", "stands in constraints alone"),
    # aggregations
    ("AggregationMistake", "O[i : N] = A[i, «j»];", "which aggregation?"),
    ("AggregationMistake", "O = max(A[i, j]) + «i»;", "which aggregation?"),
    ("AggregationMistake", "O = A[«i», 0];", "which aggregation?"),
    ("AggregationMistake", "O[i : N] = «max(A)»;", "the elementwise function is max(a, b)"),
    ("AggregationMistake", "O = «min(3)»;", "needs indices"),
    ("AggregationMistake", "O = «sum(A)»;", "needs indices"),
    ("AggregationMistake", "O = «+»(B[i]);", "write O[] = +(...)"),
    ("AggregationMistake", "O[«Ix[n]» : N] = mean(B[n]);", "sum them, count them"),
    ("AggregationMistake", "«O» = A default B;", "needs indices on the left"),
    ("AggregationMistake", "«O» = A no_defract;", "needs indices on the left"),
    ("AggregationMistake", "«O» = A init A;", "needs indices on the left"),
    ("AggregationMistake", "O[«Ix[i]» : N] = B[i];", "aggregate them with +, *, > or <"),
    ("AggregationMistake", "O[«Ix[i]» : N] = logsumexp(B[i]);", "cannot write where"),
    ("AggregationMistake", "O[i : N] = +(B[i]), «Ix[i]» < 3;", "write `t < L[b] ? value` in the body"),
    ("AggregationMistake", "O[i : N] = B[i], i < «Ix[0]»;", "write `t < L[b] ? value` in the body"),
    ("AggregationMistake", "O = «A > 0 ? A»;", "no point to drop"),
    ("AggregationMistake", "O[i : N] = B[«i > 0 ? i»];", "cannot stand in an index"),
    ("AggregationMistake", "O = sum(A[i, j]) * sum(B[k]), «i + k < 3»;", "mixes the variables of two"),
    ("AggregationMistake", "O = A + B, «0 < 3»;", "no aggregation for this constraint"),
    ("AggregationMistake", "O = in(«A»);", "takes a tensor's element"),
    ("AggregationMistake", "O[i : N] = pad(«B[i] + 1», 0);", "takes a tensor's element"),
    ("AggregationMistake", "O[i : N] = «index»(A, 0);", "works on whole tensors"),
    ("AggregationMistake", "O[i : N] = «gather»(A, X);", "works on whole tensors"),
    ("AggregationMistake", "O[i : N] = O[i - 1] + B[i] init B[«j»];", "does not stand on the left"),
    # rank
    ("RankMistake", "O[i : N] = «A[i]»;", "`A` is declared with rank 2 on line 1"),
    ("RankMistake", "O[i : N] = «B[i, 0]»;", "has rank 1 but is given 2 indices"),
    ("RankMistake", "O[i : N] = «K[i]»;", "has rank 0 but is given 1 index"),
    ("RankMistake", "P[i : N] = X[i, i];\nO[i : N] = «X[i]»;", "first used with rank 2 on line 2"),
    ("RankMistake", "P = A * 2;\nO[i : N] = «P[i]»;", "assigned with rank 2 on line 2"),
    ("RankMistake", "O[i : N] = B[i] + «A»;", "read an element, A[i, j]"),
    ("RankMistake", "O[i : N] = sum(B[j] * «A»);", "cannot stand beside indices"),
    ("RankMistake", "«O[i : N, M]» = B[i];", "1 index but 2 sizes"),
    ("RankMistake", "O[i : N] = B[i] default «A»;", "the default `A` has rank 2"),
    ("RankMistake", "O = index(A, «2»);", "has no dimension 2"),
    ("RankMistake", "O[i : shape(A, «5»)] = B[i];", "has no dimension 5"),
    ("RankMistake", "O = builtin_softmax(«B», N, M);", "takes a tensor of rank 2"),
    # sizes and types
    ("SizeMistake", "O[i, «j»] = +(A[i, 2*j]);", "cannot be known"),
    ("SizeMistake", "O[«2*i»] = +(B[i]);", "only a bare index variable"),
    ("TypeMistake", "O = as_float(A, «17»);", "16, 32, 64 bits"),
    ("TypeMistake", "O = as_int(A, «N»);", "8, 16, 32, 64 bits"),
    ("TypeMistake", "O = as_uint(A, «64»);", "8, 16, 32 bits"),
    ("TypeMistake", "O = element(«A», 1);", "is a tuple"),
    ("TypeMistake", "O = element(tuple(A, B), «2»);", "no element 2"),
    ("TypeMistake", "O = «tuple(A, B)» + 1;", "a tuple is not a value"),
    ("AggregationMistake", "T = tuple(A, B + exp(«i»)); O = element(T, 0);", "needs an aggregation"),
    ("TypeMistake", "O = reshape(A, «0.5»);", "holds integers only"),
    ("TypeMistake", "O = index(A, «N»);", "an integer literal"),
    # syntax inside a statement
    ("SyntaxMistake", "O[i : N] «==» (B[i]);", "write `= =(...)`"),
    ("SyntaxMistake", "O[i : N] = +(B[i]) «*» B[i];", "nothing can follow"),
    ("SyntaxMistake", "O[i : N] «+=» B[i];", "as in `= +(...)`"),
    ("SyntaxMistake", "O[i : N] = +«B»[i];", "needs parentheses"),
    ("SyntaxMistake", "O[i : M] = B[i] - «b»[i];", "write `B`"),
    ("SyntaxMistake", "O[i : N] = +(B[i]«,» B[i]);", "takes one expression"),
    ("SyntaxMistake", "O = A < B «<» A;", "do not chain"),
    ("SyntaxMistake", "O = A == B «==» A;", "do not chain"),
    ("SyntaxMistake", "O = A < B «>=» A;", "do not chain"),
    ("SyntaxMistake", "O = (A + B«;»", "unexpected `;`"),
    ("SyntaxMistake", "O = (A + B«]»;", "cannot close the `(` on line 2, column 9"),
    ("SyntaxMistake", "O = A«)»;", "cannot close the `{`"),
    ("SyntaxMistake", "O = A «$» B;", "unexpected character `$`"),
    ("SyntaxMistake", "O = A«.b»;", "no attributes or methods"),
    ("SyntaxMistake", "O = A «é» B;", "unexpected character `é`"),
    ("SyntaxMistake", "O = A «&&» B;", "write `O = A & B`"),
    ("SyntaxMistake", "O = A «**» 2;", "write `O = pow(A, 2)`"),
    ("SyntaxMistake", "O = «default» + 1;", "`default` is a reserved word"),
    ("SyntaxMistake", "O[«init» : N] = B[i];", "`init` is a reserved word"),
    ("SyntaxMistake", "«function» = A;", "`function` is a reserved word"),
    ("SyntaxMistake", "O = f(«no_defract»);", "`no_defract` is a reserved word"),
    ("SyntaxMistake", "«o»[i : N] = B[i];", "write `O`"),
    ("SyntaxMistake", "P = A\n«O» = B;", "expected `;` before `O`"),
    ("SyntaxMistake", "O = A «B»;", "expected an operator"),
    ("SyntaxMistake", "O = 2«N»;", "written 2*N"),
    ("SyntaxMistake", "O = A[i «:» N];", "sizes stand on the left side"),
    ("SyntaxMistake", "O = «;»", "expected an expression"),
    ("SyntaxMistake", "O = exp(A,«)»;", "expected an expression"),
    ("SyntaxMistake", "O = «99999999999999999999»;", "does not fit in 64 bits"),
    ("SyntaxMistake", "O[i : N] = B[i], «i»;", "a constraint has the form `e < c`"),
    ("SyntaxMistake", "O[i : N] = B[i], «i > 3»;", "write `i - 4 < N`"),
    ("SyntaxMistake", "O[i : N] = B[i] default A «default» B;", "two `default`"),
    ("SyntaxMistake", "[«a»] O = A;", "unexpected `a`"),
]

DOUBLING = (
    "function f(A) -> (B) { A0 = A; " + " ".join(f"A{n} = A{n - 1} * A{n - 1};" for n in range(1, 100)) + " B = A99; }"
)
SOURCES = [
    ("SyntaxMistake", "Y[i] «==» X[i]", "hint: write `=`"),
    ("SyntaxMistake", "«»", "the source is empty"),
    ("SyntaxMistake", "«»  // nothing but this\n# and this\n", "the source is empty"),
    ("SyntaxMistake", "Y = «(»A + B", "`(` is never closed"),
    ("SyntaxMistake", "Y = A[«(»i + 1", "`(` is never closed"),
    ("SyntaxMistake", "Y = A +«»", "where an expression is expected"),
    ("SyntaxMistake", "Y =«»\n", "where an expression or an aggregation"),
    ("SyntaxMistake", "Y«»", "`=` or `[`"),
    ("SyntaxMistake", "«exp(X)»", "write `Y = exp(X)`"),
    ("SyntaxMistake", "«X + 1»", "a statement names what it computes"),
    ("SyntaxMistake", "«-X»; Z = X", "write `Y = -X`"),
    ("SyntaxMistake", "«sum(A[i, k] * B[k, j])»", "as in `Y[i] = X[i] + 1`"),
    ("SyntaxMistake", "Z = X; «A[i] >= B[i]»", "a statement names what it computes"),
    ("SyntaxMistake", "function (A) -> (B) «{» B = A;", "`{` is never closed"),
    ("SyntaxMistake", "function (A[N«)» -> (O) { O = A; }", "cannot close the `[`"),
    ("SyntaxMistake", "function (A[«n»]) -> (O) { O = A; }", "a name or an integer"),
    ("SyntaxMistake", "function (A[2«*»N]) -> (O) { O = A; }", "sizes are computed in the body"),
    ("SyntaxMistake", "function («a»[N]) -> (O) { O = A; }", "write `A`"),
    ("SyntaxMistake", "«fuction» (A[N]) -> (O) { O = A; }", "did you mean `function`?"),
    ("SyntaxMistake", "function (A[N]) -> (O«[»N]) { O = A; }", "outputs are names"),
    ("SyntaxMistake", "function (A) -> (B) { B = A; } «Y» = A", "expected `function`"),
    ("SyntaxMistake", "Y = A«)»", "closes nothing"),
    ("SyntaxMistake", "function (A[«99999999999999999999»]) -> (A) {}", "64 bits"),
    ("NameMistake", "«function» () -> () { Y = 3; }", "at least one tensor"),
    ("NameMistake", "function (A) -> («C») { B = A; }", "the output `C` is never assigned"),
    ("NameMistake", "function (Abc) -> («Acb») { B = Abc; }", "did you mean `Abc`?"),
    ("NameMistake", "function (A[N]) -> («N») {}", "is a dimension, not a tensor"),
    ("NameMistake", "«T» = tuple(A, B)", "is a tuple, not a tensor"),
    ("NameMistake", "function (A, «A») -> (B) { B = A; }", "input names are distinct"),
    ("NameMistake", "function (A[N], «N») -> (B) { B = A; }", "`N` is already a dimension"),
    ("NameMistake", "function (N, «A»[N]) -> (B) { B = A; }", "both an input and a dimension"),
    ("NameMistake", "function «exp»(A) -> (B) { B = A; }", "is a function of the language"),
    ("NameMistake", "function g(A) -> (B) { B = «f»(A); } function f(A) -> (B) { B = A; }", "move its definition up"),
    ("AssignmentMistake", "function f(A) -> (A) {} function «f»(A) -> (A) {}", "defined twice"),
    ("AssignmentMistake", "Y = «Y» + 1", "read in its own statement"),
    ("ArityMistake", "function f(A) -> (A, A) {} function g(A) -> (B) { B = «f»(A); }", "returns 2 outputs"),
    ("ArityMistake", "function f(A) -> (A) {} function g(A) -> (B) { B = «f(A, A)»; }", "its inputs: A"),
    ("RankMistake", "function f(A[N, M]) -> (A) {} function g(A[N]) -> (B) { B = f(«A»); }", "of rank 2"),
    ("RankMistake", "function f(A) -> (B) { B[] = +(A[i]); } function g(A[]) -> (B) { B = f(«A»); }", "of rank 1"),
    (
        "SizeMistake",
        "function f(A[3]) -> (A) {} function g(A[4]) -> (B) { B = f(«A»); }",
        "of size 3 along dimension 0",
    ),
    (
        "NameMistake",
        "function f(A[N], P) -> (B) { B[i : P] = A[i]; } function g(A[N]) -> (B) { B = f(A, «A»); }",
        "as a size",
    ),
    ("AggregationMistake", "function f(A[N]) -> (A) {} function g(A[N]) -> (B) { B[i : N] = «f»(A[i]); }", "whole"),
    ("AggregationMistake", f"{DOUBLING} function g(A[N]) -> (B) {{ B[i : N] = «f»(A[i]); }}", "10000 operations"),
]


def strip(marked: str) -> tuple[str, int, int]:
    start = marked.index("«")
    stop = marked.index("»") - 1
    return marked.replace("«", "").replace("»", ""), start, stop


def check(kind: str, marked: str, part: str) -> TileError:
    source, start, stop = strip(marked)
    with pytest.raises(TileError) as caught:
        parse(source)
    error = caught.value
    text = str(error)
    assert type(error) is getattr(errors, kind), text
    assert error.span is not None, text
    place = (error.span.start, error.span.stop)
    assert place == (start, stop) or (start == stop and error.span.start == start), f"{text}\n{place}"
    assert part in text, text
    assert "^" in text and error.__cause__ is None
    return error


@pytest.mark.parametrize("kind, body, part", BODIES)
def test_statement(kind, body, part):
    check(kind, HEAD + body + "\n}", part)


@pytest.mark.parametrize("kind, source, part", SOURCES)
def test_source(kind, source, part):
    check(kind, source, part)


def test_line_and_carets():
    error = check("NameMistake", HEAD + "P = A;\n    O = exp(«Foo») + 1;\n}", "Foo")
    assert error.position == (3, 13)
    line, carets = str(error).splitlines()[1:3]
    assert line.index("Foo") == carets.index("^")
    assert carets.count("^") == 3


def test_file_name():
    with pytest.raises(errors.NameMistake, match=r"^conv\.tile:2:5: nothing here is named `Z`"):
        parse("function (A) -> (Y) {\nY = Z;\n}", filename="conv.tile")


def test_unknown_entry():
    with pytest.raises(errors.NameMistake) as caught:
        parse("function f(A) -> (A) {} function g(A) -> (A) {}", entry="h")
    assert "`f`, `g`" in str(caught.value)


def test_messages(golden):
    texts = []
    for kind, marked, _ in [*((k, HEAD + b + "\n}", p) for k, b, p in BODIES), *SOURCES]:
        source, _, _ = strip(marked)
        with pytest.raises(TileError) as caught:
            parse(source)
        texts.append(f"{kind}: {caught.value}\n")
    golden("language/errors.txt", "\n".join(texts))


def test_every_message_says_what_to_do():
    """By a hint, or by what was expected in the place of what stands there."""
    for kind, marked, _ in [*((k, HEAD + b + "\n}", p) for k, b, p in BODIES), *SOURCES]:
        with pytest.raises(TileError) as caught:
            parse(strip(marked)[0])
        assert caught.value.hint or "expected" in caught.value.message, f"{kind}: {caught.value}"


def test_a_function_without_outputs() -> None:
    error = check("SyntaxMistake", "function (X[N]) «{» Y[i : N] = X[i]; }", "{")
    assert "-> (Y)" in str(error)

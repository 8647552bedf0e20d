// What the controller tells all units at once; a unit ignores what is not for it.
localparam logic [3:0] BEGIN_IMAGE = 0;  // layers: initial state; sums: zero; input: sums pixels
localparam logic [3:0] SCAN = 1;         // couplings: sums follow the bits that have changed
localparam logic [3:0] STEP = 2;         // layers: one time step
localparam logic [3:0] RESTORE = 3;      // layers: back to the end of the free phase
localparam logic [3:0] SHOW = 4;         // top layer: its states, one a cycle, to the readout
localparam logic [3:0] LEARN = 5;        // couplings: contrast, momentum, flips
localparam logic [3:0] MOVE_BIASES = 6;  // layers: biases follow the change of activity
localparam logic [3:0] LEAK = 7;         // couplings whose turn it is: halve all momenta
localparam logic [3:0] FORGET = 8;       // couplings: all momenta to zero

// The order of events: an image in, its phases, its class out, and what is learnt of it.
//
// It gives one command at a time to all units and waits until none is busy. Registers of 32 bits
// hold what a host may change, and count.
module binep_control #(
    parameter int INPUTS = 64,
    parameter int COUPLINGS = 2,
    parameter int PER_CLASS = 10,
    parameter int TURNS = 1,                         // of a step: 2 if odd and even layers alternate
    parameter int PHASES = 1,
    parameter int PLUS = 0,
    parameter int MINUS = 0,
    parameter logic [PHASES-1:0] RESTORES = 0,       // phases that go back to the end of phase 0
    parameter logic [PHASES-1:0] CONSTANT = 0,       // phases with a constant nudge
    parameter logic [PHASES*32-1:0] STEPS = 20,      // initial values of registers
    parameter logic [PHASES*32-1:0] BETAS = 0,
    parameter logic [COUPLINGS*32-1:0] THRESHOLDS = 0,
    parameter logic [COUPLINGS*32-1:0] HALF_LIVES = 0,
    parameter logic [COUPLINGS*32-1:0] BIAS_STEPS = 0,
    parameter logic [31:0] MARGIN = 0,
    parameter logic [31:0] SEED = 1,
    parameter int RANDOM_SIGN = 0,
    parameter int REVERSE = 0,                       // whether the span of betas is negative
    parameter int BETA_WIDTH = 24,
    parameter int LEARNING = 0
) (
    input  logic                         clk,
    input  logic                         reset,
    // images, labels, classes
    input  logic                         pixel_valid,
    output logic                         pixel_ready,
    output logic                         pixel_last,
    input  logic                         label_valid,
    output logic                         label_ready,
    input  logic [15:0]                  label_class,
    output logic                         result_valid,
    input  logic                         result_ready,
    output logic [15:0]                  result_class,
    // registers
    input  logic                         register_write,
    input  logic [7:0]                   register_at,
    input  logic [31:0]                  register_written,
    output logic [31:0]                  register_value,
    // units
    output logic                         start,
    output logic [3:0]                   command,
    input  logic                         busy,
    input  logic                         changed,    // a bit has, when its layer moved last
    output logic                         turn,
    output logic                         keep_plus,
    output logic                         keep_minus,
    output logic                         keep_state,
    output logic signed [BETA_WIDTH-1:0] beta,
    output logic signed [BETA_WIDTH-1:0] margin,
    output logic                         nudge_anew,
    output logic [15:0]                  first_target,
    output logic [15:0]                  last_target,
    output logic                         reverse,
    output logic [COUPLINGS-1:0]         leaks,
    output logic [COUPLINGS*32-1:0]      thresholds,
    output logic [COUPLINGS*32-1:0]      bias_steps,
    output logic                         stepped,    // a time step has ended
    input  logic [15:0]                  best,
    input  logic [31:0]                  events,
    input  logic [31:0]                  flips
);
    `include "binep_commands.svh"
    localparam logic [3:0] READY = 9, HAND_OVER = 10;   // besides the commands, states

    // --- registers --------------------------------------------------------------------------------
    logic                    learns;
    logic [31:0]             seed, cycles, images, steps_taken, handicap;
    logic [PHASES*32-1:0]    steps, betas;
    logic [COUPLINGS*32-1:0] half_lives, ages;
    logic [3:0]              state, following;
    logic [31:0]             step;
    logic [1:0]              phase;
    logic                    negative;

    always_comb begin
        register_value = '0;
        case (register_at)
            8'h00: register_value = 32'h42455031;
            8'h01: register_value = {31'b0, learns};
            8'h02: register_value = {31'b0, state == READY};
            8'h03: register_value = seed;
            8'h04: register_value = cycles;
            8'h05: register_value = events;
            8'h06: register_value = flips;
            8'h07: register_value = images;
            8'h08: register_value = handicap;
            8'h09: register_value = steps_taken;
            default: ;
        endcase
        for (int p = 0; p < PHASES; p++) begin
            if (register_at == 8'h10 + 8'(2 * p)) register_value = steps[32*p +: 32];
            if (register_at == 8'h11 + 8'(2 * p)) register_value = betas[32*p +: 32];
        end
        for (int n = 0; n < COUPLINGS; n++) begin
            if (register_at == 8'h20 + 8'(4 * n)) register_value = thresholds[32*n +: 32];
            if (register_at == 8'h21 + 8'(4 * n)) register_value = half_lives[32*n +: 32];
            if (register_at == 8'h22 + 8'(4 * n)) register_value = bias_steps[32*n +: 32];
        end
    end

    always_ff @(posedge clk)
        if (reset) begin
            learns <= 1'b0;
            handicap <= MARGIN;
            steps <= STEPS;
            betas <= BETAS;
            thresholds <= THRESHOLDS;
            half_lives <= HALF_LIVES;
            bias_steps <= BIAS_STEPS;
        end else if (register_write) begin
            for (int p = 0; p < PHASES; p++)
                if (register_at == 8'h10 + 8'(2 * p)) steps[32*p +: 32] <= register_written;
            // Without learning these are constants, and synthesis leaves them out.
            if (LEARNING != 0) begin
                if (register_at == 8'h01) learns <= register_written[0];
                if (register_at == 8'h08) handicap <= register_written;
                for (int p = 0; p < PHASES; p++)
                    if (register_at == 8'h11 + 8'(2 * p)) betas[32*p +: 32] <= register_written;
                for (int n = 0; n < COUPLINGS; n++) begin
                    if (register_at == 8'h20 + 8'(4 * n)) thresholds[32*n +: 32] <= register_written;
                    if (register_at == 8'h21 + 8'(4 * n)) half_lives[32*n +: 32] <= register_written;
                    if (register_at == 8'h22 + 8'(4 * n)) bias_steps[32*n +: 32] <= register_written;
                end
            end
        end

    // --- the next image ---------------------------------------------------------------------------
    logic [31:0] arrived;
    logic        image_here, label_here, go;

    assign pixel_ready = state == READY && !image_here;
    assign pixel_last = arrived == INPUTS - 1;
    assign label_ready = state == READY && !label_here && learns;
    assign go = image_here && (label_here || !learns);

    always_ff @(posedge clk)
        if (reset) begin
            arrived <= '0;
            image_here <= 1'b0;
            label_here <= 1'b0;
            first_target <= '0;
            last_target <= '0;
        end else begin
            if (state == READY && go) begin
                image_here <= 1'b0;
                label_here <= 1'b0;
            end
            if (pixel_valid && pixel_ready) begin
                arrived <= pixel_last ? '0 : arrived + 1;
                image_here <= pixel_last;
            end
            if (label_valid && label_ready) begin
                label_here <= 1'b1;
                first_target <= 16'(label_class * PER_CLASS);
                last_target <= 16'(label_class * PER_CLASS + PER_CLASS - 1);
            end
        end

    // --- the order of events ----------------------------------------------------------------------
    logic [3:0]  restores, constant;
    logic        issued, done, step_ends, last_step, phase_ends, last_phase;
    logic [31:0] mixed_1, mixed_2, mixed;
    logic signed [BETA_WIDTH-1:0] strength;

    assign restores = 4'(RESTORES);
    assign constant = 4'(CONSTANT);
    assign done = issued && !start && !busy;
    assign step_ends = state == STEP && turn == 1'(TURNS - 1);
    assign stepped = step_ends && done;
    // In turn, a step that changes no bit is the last: from there on none would.
    assign last_step = step == steps[32*phase +: 32] - 1 || (TURNS > 1 && !changed);
    assign phase_ends = step_ends && last_step;
    assign last_phase = !learns || phase == 2'(PHASES - 1);
    // The bits and states at the end of a phase are written by its last step; by every step where
    // only its end tells whether it was the last.
    assign keep_plus = (TURNS > 1 || last_step) && phase == 2'(PLUS);
    assign keep_minus = (TURNS > 1 || last_step) && phase == 2'(MINUS);
    assign keep_state = (TURNS > 1 || last_step) && phase == 0;
    assign strength = betas[32*phase +: BETA_WIDTH];
    assign beta = negative ? -strength : strength;
    assign margin = learns ? handicap[BETA_WIDTH-1:0] : '0;
    assign nudge_anew = !constant[phase] || step == 0;
    assign reverse = negative == (REVERSE != 0);
    // xorshift32; bit 16 decides.
    assign mixed_1 = seed ^ (seed << 13);
    assign mixed_2 = mixed_1 ^ (mixed_1 >> 17);
    assign mixed = mixed_2 ^ (mixed_2 << 5);

    // What follows a step, or the readout.
    always_comb begin
        following = SCAN;
        if (phase_ends && phase == 0) following = SHOW;
        else if (state == SHOW || phase_ends)
            following = last_phase ? (learns ? LEARN : HAND_OVER)
                  : restores[phase + 1'b1] ? RESTORE : SCAN;
    end

    always_ff @(posedge clk)
        if (reset) begin
            state <= LEARNING != 0 ? FORGET : READY;
            issued <= 1'b0;
            start <= 1'b0;
            result_valid <= 1'b0;
            seed <= SEED;
            negative <= 1'b0;
            turn <= 1'b0;
            images <= '0;
            steps_taken <= '0;
            ages <= '0;
            leaks <= {COUPLINGS{1'b1}};
            cycles <= '0;
        end else begin
            start <= 1'b0;
            if (LEARNING != 0 && register_write && register_at == 8'h03) seed <= register_written;
            if (result_valid && result_ready) result_valid <= 1'b0;
            if (state != READY) cycles <= cycles + 1;
            if (state == READY) begin
                if (go) begin
                    state <= BEGIN_IMAGE;
                    cycles <= '0;
                    step <= '0;
                    phase <= '0;
                    steps_taken <= '0;
                    if (learns && RANDOM_SIGN != 0) begin
                        seed <= mixed;
                        negative <= !mixed[16];
                    end
                end
            end else if (state == HAND_OVER) begin
                if (!result_valid) begin
                    result_valid <= 1'b1;
                    result_class <= best;
                    state <= READY;
                end
            end else if (!issued) begin
                issued <= 1'b1;
                start <= 1'b1;
                command <= state;
            end else if (done) begin
                issued <= 1'b0;
                case (state)
                    BEGIN_IMAGE, RESTORE: state <= SCAN;
                    SCAN: state <= STEP;
                    STEP, SHOW: begin
                        state <= following;
                        if (state == STEP && TURNS > 1) turn <= !turn;
                        if (step_ends) begin
                            step <= step + 1;
                            steps_taken <= steps_taken + 1;
                        end
                        if (following == RESTORE
                            || (following == SCAN && (state == SHOW || phase_ends))) begin
                            step <= '0;
                            phase <= phase + 1'b1;
                        end
                    end
                    LEARN: state <= MOVE_BIASES;
                    MOVE_BIASES: begin
                        images <= images + 1;
                        for (int n = 0; n < COUPLINGS; n++) begin
                            leaks[n] <= ages[32*n +: 32] + 1 >= half_lives[32*n +: 32];
                            ages[32*n +: 32] <= ages[32*n +: 32] + 1 >= half_lives[32*n +: 32]
                                ? '0 : ages[32*n +: 32] + 1;
                        end
                        state <= LEAK;
                    end
                    LEAK: state <= HAND_OVER;
                    FORGET: state <= READY;
                    default: state <= READY;
                endcase
            end
        end
endmodule

// Shows the core the vectors of this folder and compares all that it does with what is expected:
// classes, the outputs that they are read by, states of all neurons after every time step of the
// first images, and in the end, if it learns, weights, biases and momenta. What is particular to this
// network, sizes and names of memories, stands in `testbench_network.svh`. With +classes it also
// prints what each image was read as: its number, class, expected class and label; with +cycles,
// its number and the cycles that it took.
`timescale 1ns / 1ps

module testbench;
    logic        clk = 1'b0, reset = 1'b1;
    logic        pixel_valid = 1'b0, label_valid = 1'b0, register_write = 1'b0;
    logic        pixel_ready, label_ready, result_valid, stepped;
    logic [7:0]  pixel, register_at = '0;
    logic [15:0] label_class, result_class;
    logic [31:0] register_written = '0, register_value;

    binep_core core (
        .clk, .reset, .pixel_valid, .pixel_ready, .pixel, .label_valid, .label_ready, .label_class,
        .result_valid, .result_ready(1'b1), .result_class, .register_write, .register_at,
        .register_written, .register_value, .stepped
    );

    int          wrong = 0, compared = 0, differ = 0, image = 0, sent = 0, reads = 0;
    int          shown = 0, outputs_differ = 0;
    logic        idle = 1'b1;
    longint      read_cycles = 0, learnt_cycles = 0;

    `include "testbench_network.svh"

    logic [7:0]             pixels [0:IMAGES*INPUTS-1];
    logic [15:0]            labels [0:IMAGES-1];
    logic [15:0]            expected [0:IMAGES-1];
    logic                   lessons [0:IMAGES-1];
    logic [STATE_WIDTH-1:0] states [0:STATES];
    logic [SHOWN_WIDTH-1:0] outputs [0:IMAGES*OUTPUTS-1];

    task compare_state(input logic [STATE_WIDTH-1:0] state);
        if (compared >= STATES || state !== states[compared]) differ = differ + 1;
        compared = compared + 1;
    endtask

    initial begin
        $readmemh("vectors_pixels.mem", pixels);
        $readmemh("vectors_labels.mem", labels);
        $readmemh("vectors_expected.mem", expected);
        $readmemh("vectors_lessons.mem", lessons);
        $readmemh("vectors_outputs.mem", outputs);
        if (STATES > 0) $readmemh("vectors_states.mem", states, 0, STATES - 1);
        repeat (3) @(negedge clk);
        reset = 1'b0;
    end

    always #5 clk = ~clk;

    assign pixel = pixels[image * INPUTS + sent];
    assign label_class = labels[image];

    // An image after the other: read, or also learnt.
    always @(posedge clk)
        if (!reset) begin
            register_write <= 1'b0;
            register_at <= 8'h04;
            if (idle && image < IMAGES) begin
                idle <= 1'b0;
                pixel_valid <= 1'b1;
                label_valid <= lessons[image];
                register_write <= 1'b1;
                register_at <= 8'h01;
                register_written <= {31'b0, lessons[image]};
            end
            if (pixel_valid && pixel_ready) begin
                sent <= sent == INPUTS - 1 ? 0 : sent + 1;
                if (sent == INPUTS - 1) pixel_valid <= 1'b0;
            end
            if (label_valid && label_ready) label_valid <= 1'b0;
            // The memories of all layers, between a step and the next.
            if (stepped && image < TRACED) compare_states;
            if (core.shown_valid) begin
                if (core.shown !== outputs[shown]) outputs_differ = outputs_differ + 1;
                shown = shown + 1;
            end
            if (result_valid) begin
                if (result_class !== expected[image]) wrong = wrong + 1;
                if ($test$plusargs("classes"))
                    $display("%0d %0d %0d %0d", image, result_class, expected[image],
                             labels[image]);
                if ($test$plusargs("cycles")) $display("%0d %0d", image, register_value);
                if (lessons[image]) learnt_cycles = learnt_cycles + longint'(register_value);
                else begin
                    read_cycles = read_cycles + longint'(register_value);
                    reads = reads + 1;
                end
                image <= image + 1;
                idle <= 1'b1;
            end
            if (idle && image == IMAGES) begin
                $display("%0d images, %0d read otherwise than expected", IMAGES, wrong);
                $display("%0d images read, %0d cycles in all", reads, read_cycles);
                $display("%0d images learnt, %0d cycles in all", IMAGES - reads, learnt_cycles);
                $display("%0d outputs compared, %0d differ", shown, outputs_differ);
                $display("%0d states compared, %0d differ", compared, differ);
                compare_learnt;
                if (wrong != 0 || differ != 0 || outputs_differ != 0 || compared != STATES
                    || shown != IMAGES * OUTPUTS) $display("FAILED");
                else $display("PASSED");
                $finish;
            end
        end
endmodule

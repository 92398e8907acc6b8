// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {LogEntry} from "../src/LogEntry.sol";
import {Network} from "./Network.sol";

contract Reader {
    function isIn(bytes memory expected, bytes calldata leaf, uint256 offset) external pure returns (bool) {
        return LogEntry.isIn(expected, leaf, offset);
    }
}

contract LogEntryTest is Network {
    Reader internal reader = new Reader();

    function payloadAt(uint64 issuedAtMs, string memory run) internal view returns (LogEntry.Payload memory) {
        return LogEntry.Payload(issuedAtMs, 0, NETWORK, run, operator);
    }

    /// @dev The bytes of the number after the name of its field.
    function numberOf(uint64 number, uint256 length) internal view returns (bytes memory found) {
        bytes memory entry = LogEntry.slashOverturned(bytes32(0), payloadAt(number, RUN_NAME));
        // 1 + 11 + 2 + 32 of the body, 14 + 1 of expires_at_ms, 13 of the name
        found = new bytes(length);
        for (uint256 i = 0; i < length; i++) {
            found[i] = entry[74 + i];
        }
    }

    function test_numbersHaveTheirShortestForm() public view {
        assertEq(numberOf(0x7f, 1), hex"7f");
        assertEq(numberOf(0x80, 2), hex"cc80");
        assertEq(numberOf(0xff, 2), hex"ccff");
        assertEq(numberOf(0x100, 3), hex"cd0100");
        assertEq(numberOf(0xffff, 3), hex"cdffff");
        assertEq(numberOf(0x10000, 5), hex"ce00010000");
        assertEq(numberOf(0xffffffff, 5), hex"ceffffffff");
        assertEq(numberOf(0x100000000, 9), hex"cf0000000100000000");
        assertEq(numberOf(type(uint64).max, 9), hex"cfffffffffffffffff");
    }

    function test_longNamesHaveTheirLengthBefore() public view {
        bytes memory short = LogEntry.slashOverturned(bytes32(0), payloadAt(1, "a-name-with-thirty-one-letters-"));
        bytes memory long = LogEntry.slashOverturned(bytes32(0), payloadAt(1, "a-name-with-thirty-two-letters-x"));
        assertEq(long.length, short.length + 2); // one more letter, one more byte of length
        bytes memory tail =
            abi.encodePacked(hex"d920", "a-name-with-thirty-two-letters-x", hex"a673656e646572c414", operator);
        assertTrue(reader.isIn(tail, long, long.length - tail.length));
    }

    /// @dev Bytes are found where they are and nowhere else, and never past the end.
    function testFuzz_bytesAreFoundWhereTheyAre(
        bytes memory before,
        bytes memory part,
        bytes memory rest,
        uint256 offset
    ) public view {
        bytes memory leaf = bytes.concat(before, part, rest);
        assertTrue(reader.isIn(part, leaf, before.length));
        assertFalse(reader.isIn(bytes.concat(part, hex"00"), leaf, leaf.length - part.length));
        offset = bound(offset, leaf.length + 1, type(uint64).max);
        assertFalse(reader.isIn(part, leaf, offset));
    }

    function test_oneUnitOfTheTestTokenIsOneNano() public view {
        assertEq(token.decimals(), 9);
    }
}

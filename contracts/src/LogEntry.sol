// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Reading the coordinator's entries in a leaf of the log
/// @notice The log's encoding is canonical msgpack: one byte string per value. So nothing is parsed here: the bytes that must stand in the
/// leaf are built from what is claimed, and compared. They run from the last fields of the entry's body to the payload's sender,
/// about 200 bytes that no name, text or digest of another entry can hold.
library LogEntry {
    /// @notice Who says it, to whom, and when.
    struct Payload {
        uint64 issuedAtMs;
        uint64 expiresAtMs;
        string network;
        string run;
        address sender;
    }

    /// @notice End of a SlashProposed entry: `amount_nano` comes before and is not looked at; the terms say how much.
    function slashProposed(bytes32 submission, bytes32 evidence, Payload memory payload)
        internal
        pure
        returns (bytes memory)
    {
        bytes memory body = abi.encodePacked(hex"a865766964656e6365c420", evidence, _submission(submission));
        return abi.encodePacked(body, _payload("SlashProposed", payload));
    }

    /// @notice A SlashExecuted entry. `bountyTo` is 0 where the slash follows no finding.
    function slashExecuted(bytes32 submission, address bountyTo, Payload memory payload)
        internal
        pure
        returns (bytes memory)
    {
        bytes memory finder = bountyTo == address(0) ? bytes(hex"c0") : abi.encodePacked(hex"c414", bountyTo);
        bytes memory body = abi.encodePacked(hex"82", _text("bounty_to"), finder, _submission(submission));
        return abi.encodePacked(body, _payload("SlashExecuted", payload));
    }

    /// @notice A ValidatorScored entry with this penalty.
    function validatorScored(bytes32 submission, address validator, uint64 penaltyNano, Payload memory payload)
        internal
        pure
        returns (bytes memory)
    {
        bytes memory penalty = abi.encodePacked(hex"83", _text("penalty_nano"), _number(penaltyNano));
        bytes memory body = abi.encodePacked(penalty, _submission(submission), _text("validator"), hex"c414", validator);
        return abi.encodePacked(body, _payload("ValidatorScored", payload));
    }

    /// @notice A SlashOverturned entry.
    function slashOverturned(bytes32 submission, Payload memory payload) internal pure returns (bytes memory) {
        return abi.encodePacked(hex"81", _submission(submission), _payload("SlashOverturned", payload));
    }

    /// @notice Whether the leaf holds these bytes at that place.
    function isIn(bytes memory expected, bytes calldata leaf, uint256 offset) internal pure returns (bool) {
        uint256 end = offset + expected.length;
        return end <= leaf.length && keccak256(leaf[offset:end]) == keccak256(expected);
    }

    function _submission(bytes32 submission) private pure returns (bytes memory) {
        return abi.encodePacked(_text("submission"), hex"c420", submission);
    }

    /// @dev The fields of a payload after its body, in the order of their names, up to the sender.
    function _payload(string memory kind, Payload memory payload) private pure returns (bytes memory) {
        bytes memory times = abi.encodePacked(
            _text("expires_at_ms"), _number(payload.expiresAtMs), _text("issued_at_ms"), _number(payload.issuedAtMs)
        );
        bytes memory names =
            abi.encodePacked(_text("network"), _text(payload.network), _text("run"), _text(payload.run));
        return abi.encodePacked(times, _text("kind"), _text(kind), names, _text("sender"), hex"c414", payload.sender);
    }

    /// @dev msgpack string; names have at most 40 bytes.
    function _text(string memory text) private pure returns (bytes memory) {
        uint8 length = uint8(bytes(text).length);
        return length < 32 ? abi.encodePacked(0xa0 | length, text) : abi.encodePacked(hex"d9", length, text);
    }

    /// @dev msgpack unsigned integer in its shortest form.
    function _number(uint64 number) private pure returns (bytes memory) {
        if (number < 1 << 7) return abi.encodePacked(uint8(number));
        if (number < 1 << 8) return abi.encodePacked(hex"cc", uint8(number));
        if (number < 1 << 16) return abi.encodePacked(hex"cd", uint16(number));
        if (number < 1 << 32) return abi.encodePacked(hex"ce", uint32(number));
        return abi.encodePacked(hex"cf", number);
    }
}

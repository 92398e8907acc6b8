// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {Network} from "./Network.sol";

/// @dev A funded run with an anchored head, one epoch old: the operator may promise.
abstract contract PoolScene is Network {
    uint256 internal constant ANN_KEY = 0xA;
    address internal ann = vm.addr(ANN_KEY);
    address internal bob = makeAddr("bob");
    address internal funder = vm.addr(0xF);

    function setUp() public virtual override {
        super.setUp();
        tree.add("entry");
        anchorLog();
        fund(funder, 10_000);
        skip(1 hours);
    }

    function fund(address by, uint256 amount) internal {
        give(by, amount);
        vm.startPrank(by);
        token.approve(address(pool), amount);
        pool.fund(RUN, amount);
        vm.stopPrank();
    }

    function leafOf(address account, uint256 cumulative) internal pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(account, cumulative))));
    }

    function rootOf(uint256 anns, uint256 bobs) internal view returns (bytes32) {
        (bytes32 a, bytes32 b) = (leafOf(ann, anns), leafOf(bob, bobs));
        return a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
    }

    function proofBeside(address account, uint256 cumulative) internal pure returns (bytes32[] memory proof) {
        proof = new bytes32[](1);
        proof[0] = leafOf(account, cumulative);
    }

    function post(uint64 epoch, uint256 anns, uint256 bobs) internal {
        uint64 size = tree.size();
        vm.prank(operator);
        pool.postRoot(RUN, epoch, size, rootOf(anns, bobs), anns + bobs);
    }

    function refusePost(bytes4 refusal, uint64 epoch, uint64 size, uint256 total) internal {
        vm.prank(operator);
        vm.expectPartialRevert(refusal);
        pool.postRoot(RUN, epoch, size, bytes32("root"), total);
    }

    function close() internal {
        vm.prank(operator);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Closed);
    }

    function freezeLog() internal {
        bytes32 root = keccak256("another story");
        ILogAnchor.Statement memory lie = ILogAnchor.Statement(1, root, headSignature(1, root));
        logAnchor.freeze(RUN, ILogAnchor.Statement(1, tree.rootOf(1), ""), lie);
    }
}

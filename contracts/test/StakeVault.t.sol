// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

import {StakeVault} from "../src/StakeVault.sol";
import {TokenFlow} from "../src/TokenFlow.sol";
import {IStakeVault} from "../src/interfaces/IStakeVault.sol";
import {ICourt} from "../src/interfaces/ICourt.sol";
import {Network} from "./Network.sol";

/// @dev Keeps one unit of every transfer.
contract FeeToken is ERC20("Fee", "FEE") {
    constructor() {
        _mint(msg.sender, 1e18);
    }

    function _update(address from, address to, uint256 amount) internal override {
        super._update(from, to, amount);
        if (from != address(0) && amount > 0) super._update(to, address(1), 1);
    }
}

contract StakeVaultTest is Network {
    address internal node = vm.addr(WORKER_KEY);
    address internal owner = makeAddr("owner");

    function consent(address owner_, uint64 nonce) internal view returns (bytes memory) {
        bytes32 kind = keccak256("Consent(address owner,address node,uint64 nonce)");
        return sign(WORKER_KEY, digestOf(address(vault), keccak256(abi.encode(kind, owner_, node, nonce))));
    }

    function bindOwner() internal {
        bytes memory signature = consent(owner, vault.nonceOf(node));
        vm.prank(owner);
        vault.bind(node, signature);
    }

    function unbond(uint256 amount) internal {
        vm.prank(node);
        vault.unbond(node, amount);
    }

    function seize(bytes32 name, uint256 amount) internal {
        vm.prank(address(court));
        vault.seize(name, node, amount);
    }

    function setUp() public override {
        super.setUp();
        stakeJudges();
    }

    function test_firstDepositBindsANodeToItself() public {
        uint256 before = vault.total();
        give(node, 1000);
        vm.startPrank(node);
        token.approve(address(vault), 1000);
        vm.expectEmit();
        emit IStakeVault.Bound(node, node);
        vm.expectEmit();
        emit IStakeVault.Deposited(node, node, 1000);
        vault.deposit(node, 1000);
        vm.stopPrank();
        IStakeVault.Position memory position = vault.positionOf(node);
        assertEq(position.owner, node);
        assertEq(position.boundAt, block.timestamp);
        assertEq(position.stake, 1000);
        assertEq(vault.total(), before + 1000);
        assertEq(token.balanceOf(address(vault)), before + 1000);
        assertEq(vault.token(), address(token));
    }

    function test_depositNeedsAnAmountAndAnOwner() public {
        vm.expectRevert(IStakeVault.AmountMissing.selector);
        vault.deposit(node, 0);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NodeNotBound.selector, node));
        vault.deposit(node, 1);
        stake(node, 1000);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NotOwner.selector, address(this), node));
        vault.deposit(node, 1);
    }

    function test_ownerStakesBehindANodeThatConsents() public {
        bindOwner();
        give(owner, 500);
        vm.startPrank(owner);
        token.approve(address(vault), 500);
        vault.deposit(node, 500);
        vm.stopPrank();
        assertEq(vault.positionOf(node).owner, owner);
        assertEq(vault.nonceOf(node), 1);
    }

    function test_consentIsForOneOwnerOnce() public {
        bytes memory signature = consent(owner, 0);
        vm.expectPartialRevert(IStakeVault.NotNode.selector);
        vault.bind(node, signature); // sent by another
        vm.prank(owner);
        vault.bind(node, signature);
        vm.prank(owner);
        vm.expectPartialRevert(IStakeVault.NotNode.selector);
        vault.bind(node, signature); // again
    }

    function test_nodeWithStakeDoesNotChangeHands() public {
        stake(node, 1000);
        bytes memory signature = consent(owner, 0);
        vm.prank(owner);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NodeTaken.selector, node, node));
        vault.bind(node, signature);
        unbond(1000);
        vm.prank(owner);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NodeTaken.selector, node, node));
        vault.bind(node, signature);
        seize("slash", 1000);
        vm.prank(owner);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NodeTaken.selector, node, node));
        vault.bind(node, signature);
    }

    function test_emptyNodeChangesHandsAndBack() public {
        stake(node, 1000);
        unbond(1000);
        skip(DELAY);
        vm.prank(node);
        vault.withdraw(node);
        bindOwner();
        assertEq(vault.positionOf(node).owner, owner);
        stake(node, 10);
        assertEq(vault.positionOf(node).owner, node);
    }

    function test_permitSparesTheApproval() public {
        give(node, 1000);
        (uint8 v, bytes32 r, bytes32 s) = signPermit(1000);
        vm.prank(node);
        vault.depositWithPermit(node, 1000, block.timestamp, v, r, s);
        assertEq(vault.positionOf(node).stake, 1000);
    }

    function test_permitThatSomebodySentFirstIsNoHarm() public {
        give(node, 1000);
        (uint8 v, bytes32 r, bytes32 s) = signPermit(1000);
        token.permit(node, address(vault), 1000, block.timestamp, v, r, s);
        vm.prank(node);
        vault.depositWithPermit(node, 1000, block.timestamp, v, r, s);
        assertEq(vault.positionOf(node).stake, 1000);
    }

    function signPermit(uint256 amount) internal view returns (uint8, bytes32, bytes32) {
        bytes32 kind = keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)");
        bytes32 hash = keccak256(abi.encode(kind, node, address(vault), amount, token.nonces(node), block.timestamp));
        return vm.sign(WORKER_KEY, keccak256(abi.encodePacked(hex"1901", token.DOMAIN_SEPARATOR(), hash)));
    }

    function test_tokenThatTakesAFeeIsRefused() public {
        FeeToken fee = new FeeToken();
        StakeVault other = StakeVault(deployCode("StakeVault.sol", abi.encode(fee, DELAY)));
        fee.approve(address(other), 100);
        vm.expectRevert(abi.encodeWithSelector(TokenFlow.TokenFee.selector, 100, 99));
        other.deposit(address(this), 100);
    }

    function test_unbondWaitsForTheDelay() public {
        stake(node, 1000);
        unbond(400);
        assertEq(vault.unbondingsOf(node)[0].maturesAt, block.timestamp + DELAY);
        skip(DELAY - 1);
        vm.prank(node);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NothingMatured.selector, node));
        vault.withdraw(node);
        skip(1);
        vm.prank(node);
        assertEq(vault.withdraw(node), 400);
        assertEq(token.balanceOf(node), 400);
        assertEq(vault.positionOf(node).stake, 600);
        assertEq(vault.total(), JUDGES * 1000 + 600);
    }

    function test_unbondRefusesTooMuchNothingAndTooOften() public {
        stake(node, 1000);
        vm.startPrank(node);
        vm.expectRevert(IStakeVault.AmountMissing.selector);
        vault.unbond(node, 0);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.StakeTooSmall.selector, node, 1000, 1001));
        vault.unbond(node, 1001);
        for (uint256 i = 0; i < vault.UNBONDINGS_MAX(); i++) {
            vault.unbond(node, 1);
        }
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.TooManyUnbondings.selector, node, 16));
        vault.unbond(node, 1);
        vm.stopPrank();
    }

    function test_onlyTheOwnerTakesStakeBack() public {
        stake(node, 1000);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NotOwner.selector, address(this), node));
        vault.unbond(node, 1);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NotOwner.selector, address(this), node));
        vault.withdraw(node);
    }

    function test_onlyTheCourtSlashes() public {
        bytes memory refusal = abi.encodeWithSelector(IStakeVault.NotCourt.selector, address(this), address(court));
        vm.expectRevert(refusal);
        vault.seize("slash", node, 1);
        vm.expectRevert(refusal);
        vault.restore("slash");
        vm.expectRevert(refusal);
        vault.forfeit("slash", address(this), 0);
    }

    function test_slashTakesStakeFirstThenTheOldestUnbonding() public {
        stake(node, 1000);
        unbond(300);
        skip(1);
        unbond(200);
        skip(1);
        unbond(100);
        seize("slash", 850); // 400 of the stake, all 300, 150 of the 200
        IStakeVault.Unbonding[] memory left = vault.unbondingsOf(node);
        assertEq(left.length, 2);
        assertEq(left[0].amount, 50);
        assertEq(left[1].amount, 100);
        assertEq(vault.positionOf(node).unbonding, 150);
        assertEq(vault.positionOf(node).escrow, 850);
        assertEq(vault.slashableOf(node), 150);
        assertEq(vault.escrowOf("slash").amount, 850);
    }

    function test_maturedUnbondingIsStillSlashable() public {
        stake(node, 1000);
        unbond(1000);
        skip(2 * DELAY);
        seize("slash", 600);
        vm.prank(node);
        assertEq(vault.withdraw(node), 400);
    }

    function test_escrowEndsOnce() public {
        stake(node, 1000);
        seize("slash", 600);
        vm.startPrank(address(court));
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.StakeTooSmall.selector, node, 400, 401));
        vault.seize("other", node, 401);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.EscrowTaken.selector, bytes32("slash")));
        vault.seize("slash", node, 1);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.BountyOverEscrow.selector, bytes32("slash"), 600, 601));
        vault.forfeit("slash", BURNED, 601);
        vault.restore("slash");
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.EscrowUnknown.selector, bytes32("slash")));
        vault.forfeit("slash", BURNED, 0);
        vm.stopPrank();
        assertEq(vault.positionOf(node).stake, 1000);
    }

    /// @dev Whatever was unbonding, whatever is slashed and however it ends: the parts add up and the owner gets all the rest.
    function testFuzz_nothingIsStrandedByASlash(uint96[5] memory parts, uint128 slash, bool isForfeited) public {
        uint256 amount;
        for (uint256 i = 0; i < parts.length; i++) {
            parts[i] = uint96(bound(parts[i], 1, 1e20));
            amount += parts[i];
        }
        stake(node, amount + 1);
        for (uint256 i = 0; i < parts.length; i++) {
            unbond(parts[i]);
        }
        uint256 taken = bound(slash, 0, amount + 1);
        seize("slash", taken);
        vm.startPrank(address(court));
        if (isForfeited) vault.forfeit("slash", BURNED, 0);
        else vault.restore("slash");
        vm.stopPrank();
        uint256 lost = isForfeited ? taken : 0;
        assertEq(vault.total(), JUDGES * 1000 + amount + 1 - lost);
        uint256 rest = vault.positionOf(node).stake;
        if (rest > 0) unbond(rest);
        skip(DELAY);
        if (amount + 1 > lost) {
            vm.prank(node);
            vault.withdraw(node);
        }
        assertEq(token.balanceOf(node), amount + 1 - lost);
        assertEq(token.balanceOf(address(vault)), JUDGES * 1000);
        assertEq(vault.unbondingsOf(node).length, 0);
    }

    /// @dev Asked back at any time after the deed was anchored, it is still there at the end of the slash window.
    function testFuzz_unbondingCannotOutrunASlash(uint256 asked, uint256 proposed, uint256 amount) public {
        stake(node, 1000);
        asked = bound(asked, 0, terms().slashWindow);
        proposed = bound(proposed, asked, terms().slashWindow);
        amount = bound(amount, 1, 1000);
        bytes32 submission = prepare();
        skip(asked);
        unbond(amount);
        skip(proposed - asked);
        vm.prank(node);
        vm.expectRevert(abi.encodeWithSelector(IStakeVault.NothingMatured.selector, node));
        vault.withdraw(node);
        court.propose(RUN, receipt_, verdictsOf(submission, 2, 0, 3), EVIDENCE, entry_);
        assertEq(vault.escrowOf(submission).amount, terms().slashAmount);
    }

    ICourt.Receipt internal receipt_;
    ICourt.LoggedEntry internal entry_;

    function prepare() internal returns (bytes32 submission) {
        receipt_ = receiptOf(WORKER_KEY);
        submission = court.submissionOf(RUN, receipt_);
        entry_ = loggedProposal(submission);
    }
}

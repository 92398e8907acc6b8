// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ICourt} from "../src/interfaces/ICourt.sol";
import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {IRewardPool} from "../src/interfaces/IRewardPool.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {IStakeVault} from "../src/interfaces/IStakeVault.sol";
import {Network} from "./Network.sol";

/// @title Everything that parties do, in any order. Each action looks first and does nothing where it would be refused, so that no refusal hides.
contract Handler is Network {
    uint256 public constant WORKERS = 3;

    /// @notice What must never be: set by the action that saw it.
    string public broken;
    bool public isFrozen;
    bytes32[] public submissions;
    uint256 public judgesHeld;
    uint256 public judgesFunded;
    uint256 public paid;
    uint256[] public annTotals;
    uint256[] public bobTotals;

    ICourt.LoggedEntry internal entry;
    mapping(bytes32 submission => ICourt.LoggedEntry) internal executed;
    mapping(bytes32 penalty => bytes32 submission) internal judgedOf;
    uint256 internal found;
    uint256 internal claimed;
    address[] internal workers;
    address internal funder = makeAddr("funder");

    function setUp() public override {
        super.setUp();
        stakeJudges();
        for (uint256 i = 0; i < WORKERS; i++) {
            workers.push(vm.addr(WORKER_KEY + i));
            stake(workers[i], 2000);
        }
        tree.add("first");
        anchorLog();
        annTotals.push(0);
        bobTotals.push(0);
        judgesHeld = judgesHold();
    }

    // --- Stake ---

    function deposit(uint256 who, uint256 amount) public {
        stake(workerAt(who), bound(amount, 1, 1e18));
    }

    function unbond(uint256 who, uint256 amount) public {
        address node = workerAt(who);
        uint256 staked = vault.positionOf(node).stake;
        if (staked == 0 || vault.unbondingsOf(node).length == vault.UNBONDINGS_MAX()) return;
        vm.prank(node);
        vault.unbond(node, bound(amount, 1, staked));
    }

    function withdraw(uint256 who) public {
        address node = workerAt(who);
        IStakeVault.Unbonding[] memory asked = vault.unbondingsOf(node);
        bool isRipe = asked.length > 0 && asked[0].maturesAt <= block.timestamp;
        vm.prank(node);
        (bool isDone,) = address(vault).call(abi.encodeCall(vault.withdraw, node));
        note(isDone == isRipe, "unbonding was paid before its time, or not when due");
    }

    function wait(uint256 time) public {
        skip(bound(time, 1, 4 days));
    }

    // --- Slashes ---

    function accuse(uint256 who) public {
        address node = workerAt(who);
        uint256 amount = vault.slashableOf(node);
        if (amount > terms().slashAmount) amount = terms().slashAmount;
        uint256 taken = court.takenOn(RUN, block.timestamp / 1 days);
        if (isFrozen || amount == 0) return;
        ICourt.Receipt memory receipt = receiptOf(WORKER_KEY + who % WORKERS);
        bytes32 submission = court.submissionOf(RUN, receipt);
        entry = loggedProposal(submission);
        ICourt.Verdict[] memory few = verdictsOf(submission, 2, 0, 2);
        ICourt.Verdict[] memory enough = verdictsOf(submission, 2, 0, 3);
        bool isRefused = !attempt(abi.encodeCall(court.propose, (RUN, receipt, few, EVIDENCE, entry)));
        note(isRefused, "a slash without a quorum");
        bool isOpen = attempt(abi.encodeCall(court.propose, (RUN, receipt, enough, EVIDENCE, entry)));
        note(
            isOpen == (taken + amount <= terms().slashPerDay), "a day's limit was passed, or stopped what was inside it"
        );
        if (isOpen) submissions.push(submission);
        note(!attempt(abi.encodeCall(court.propose, (RUN, receipt, enough, EVIDENCE, entry))), "slashed twice");
    }

    function appealSlash(uint256 which) public {
        (bytes32 submission, ICourt.Slash memory slash) = slashAt(which);
        if (slash.status != ICourt.SlashStatus.Open || block.timestamp >= slash.appealUntil) return;
        appeal(submission, slash.node);
    }

    function judge(uint256 which, bool isFraudulent) public {
        (bytes32 submission, ICourt.Slash memory slash) = slashAt(which);
        if (slash.status != ICourt.SlashStatus.Appealed || slash.isPenalty || isFrozen) return;
        bool isInTime = block.timestamp < slash.judgeUntil;
        entry = loggedEnd(submission, isFraudulent ? "SlashExecuted" : "SlashOverturned");
        ICourt.Verdict[] memory same = verdictsOf(submission, isFraudulent ? 2 : 0, 0, 3);
        ICourt.Verdict[] memory others = verdictsOf(submission, isFraudulent ? 2 : 0, 3, 3);
        address[] memory judges = judgesFrom(0, 3);
        note(
            !attempt(abi.encodeCall(court.judge, (submission, judges, same, address(0), entry))),
            "judged by the same quorum"
        );
        bool isDone = attempt(abi.encodeCall(court.judge, (submission, judges, others, address(0), entry)));
        note(isDone == isInTime, "judged after the window, or not inside it");
    }

    function penalise(uint256 who, uint64 outcome) public {
        address validator = workerAt(who);
        uint256 taken = court.takenOn(RUN, block.timestamp / 1 days);
        uint256 amount = vault.slashableOf(validator);
        if (amount > terms().validatorSlash) amount = terms().validatorSlash;
        if (isFrozen || amount == 0) return;
        bytes32 submission = keccak256(abi.encode("judged", leases++));
        ICourt.Verdict memory refuted = verdictOf(WORKER_KEY + who % WORKERS, submission, outcome % 3);
        entry = loggedPenalty(submission, validator, 7);
        bytes memory call_ = abi.encodeCall(court.proposePenalty, (RUN, submission, refuted, 7, entry));
        bool isOpen = attempt(call_);
        note(isOpen == (taken + amount <= terms().slashPerDay), "a penalty passed a day's limit, or stopped inside it");
        if (!isOpen) return;
        judgedOf[court.penaltyOf(submission, validator)] = submission;
        submissions.push(court.penaltyOf(submission, validator));
        note(!attempt(call_), "penalised twice");
    }

    function endPenalty(uint256 which, uint64 outcome) public {
        (bytes32 penalty, ICourt.Slash memory slash) = slashAt(which);
        bool isInTime = block.timestamp < slash.judgeUntil && !isFrozen;
        bool isUnappealed = slash.status == ICourt.SlashStatus.Open && block.timestamp >= slash.appealUntil;
        bool isAppealed = slash.status == ICourt.SlashStatus.Appealed;
        bool isOpposite = outcome % 3 != 1 && outcome % 3 + slash.refuted == 2;
        ICourt.Verdict[] memory others = verdictsOf(judgedOf[penalty], outcome % 3, 3, 3);
        bytes memory call_ = abi.encodeCall(court.judgePenalty, (judgedOf[penalty], slash.node, others));
        bool isJudged = attempt(call_);
        note(isJudged == (slash.isPenalty && isAppealed && isInTime && isOpposite), "judged without the opposite");
        bool isDone = attempt(abi.encodeCall(court.executePenalty, penalty));
        note(isDone == (slash.isPenalty && isUnappealed && isInTime), "a penalty was executed when it was not due");
    }

    /// @dev The log names a finder.
    function executeFound(uint256 which) public {
        (bytes32 submission, ICourt.Slash memory slash) = slashAt(which);
        bool isWindowOver = block.timestamp >= slash.appealUntil && block.timestamp < slash.judgeUntil;
        bool isDue = slash.status == ICourt.SlashStatus.Open && isWindowOver && !isFrozen && !slash.isPenalty;
        if (!isDue) return;
        entry = loggedExecution(submission, funder);
        note(!attempt(abi.encodeCall(court.execute, (submission, operator, entry))), "the bounty went to another");
        uint256 held = vault.escrowOf(submission).amount;
        note(attempt(abi.encodeCall(court.execute, (submission, funder, entry))), "not executed when due");
        found += held * terms().bountyShare / 10_000;
    }

    function claimBounty() public {
        uint256 granted = court.bountyOf(funder);
        note(attempt(abi.encodeCall(court.claimBounty, funder)) == (granted != 0), "a bounty was claimed twice");
        claimed += granted;
        note(court.bounties() + claimed == found, "bounties are not what was found");
    }

    /// @dev The log ends it, one way or the other.
    function end(uint256 which, bool isExecuted) public {
        (bytes32 submission, ICourt.Slash memory slash) = slashAt(which);
        if (slash.status != ICourt.SlashStatus.Open || slash.isPenalty || isFrozen) return;
        entry = loggedEnd(submission, isExecuted ? "SlashExecuted" : "SlashOverturned");
        if (isExecuted) {
            executed[submission] = entry;
        } else {
            note(
                !attempt(abi.encodeCall(court.execute, (submission, address(0), entry))),
                "executed what the log overturned"
            );
        }
        bool isBack = attempt(abi.encodeCall(court.overturn, (submission, entry)));
        note(isBack == !isExecuted, "overturned without the log's word, or not with it");
    }

    function execute(uint256 which) public {
        (bytes32 submission, ICourt.Slash memory slash) = slashAt(which);
        bool isWindowOver = block.timestamp >= slash.appealUntil && block.timestamp < slash.judgeUntil;
        bool isDue = slash.status == ICourt.SlashStatus.Open && isWindowOver && !isFrozen;
        bool isDone = attempt(abi.encodeCall(court.execute, (submission, address(0), executed[submission])));
        note(
            isDone == (isDue && executed[submission].size != 0),
            "executed with the window open or without the log's word, or not when due"
        );
    }

    function refund(uint256 which) public {
        (bytes32 submission, ICourt.Slash memory slash) = slashAt(which);
        bool isOpen = slash.status == ICourt.SlashStatus.Open;
        bool isAppealed = slash.status == ICourt.SlashStatus.Appealed;
        bool isDue = (isOpen || isAppealed) && (isFrozen || block.timestamp >= slash.judgeUntil);
        note(attempt(abi.encodeCall(court.refund, submission)) == isDue, "refunded before its time, or not when due");
    }

    // --- Payouts ---

    /// @dev Judges fund too: then they might get back what others lost.
    function fund(uint256 amount, bool isJudge) public {
        if (pool.isOver(RUN)) return;
        amount = bound(amount, 1, 1e18);
        address by = isJudge ? judgeAt(0) : funder;
        if (isJudge) judgesFunded += amount;
        give(by, amount);
        vm.prank(by);
        token.approve(address(pool), amount);
        vm.prank(by);
        pool.fund(RUN, amount);
    }

    function post(uint256 anns, uint256 bobs) public {
        uint256 annTotal = annTotals[annTotals.length - 1] + bound(anns, 0, 4_000);
        uint256 bobTotal = bobTotals[bobTotals.length - 1] + bound(bobs, 0, 4_000);
        uint64 epoch = uint64(annTotals.length);
        bool isCovered = annTotal + bobTotal <= uint256(pool.poolOf(RUN).held) + pool.poolOf(RUN).claimed;
        uint64 size = logAnchor.latestSize(RUN);
        vm.prank(operator);
        (bool isDone,) = address(pool)
            .call(abi.encodeCall(pool.postRoot, (RUN, epoch, size, rootOf(annTotal, bobTotal), annTotal + bobTotal)));
        note(!isDone || isCovered, "promised more than there is");
        if (!isDone) return;
        annTotals.push(annTotal);
        bobTotals.push(bobTotal);
    }

    /// @dev One to three owners against a root; the third makes it void, and all after it.
    function challenge(uint256 epoch, uint256 first, uint256 count) public {
        if (annTotals.length == 1) return;
        epoch = bound(epoch, 1, annTotals.length - 1);
        IRewardPool.Promise memory word = pool.promiseOf(RUN, uint64(epoch));
        bytes32 statement = pool.statementOf(RUN, word.headSize, word.root);
        bytes32 headRoot = tree.rootOf(word.headSize);
        for (uint256 i = 0; i < bound(count, 1, 3); i++) {
            address by = judgeAt((first % JUDGES + i) % JUDGES);
            bool isVoid = pool.poolOf(RUN).epoch < epoch;
            bool isDue = !isVoid && block.timestamp < word.maturesAt && !pool.hasChallenged(statement, by);
            vm.prank(by);
            (bool isDone,) =
                address(pool).call(abi.encodeCall(pool.challenge, (RUN, uint64(epoch), word.root, headRoot, by)));
            note(isDone == isDue, "challenged twice or too late, or not in time");
        }
        bool isEnough = pool.votesAgainst(statement) >= terms().quorum;
        note(isEnough == (pool.poolOf(RUN).epoch < epoch), "void without a quorum, or not with it");
        while (annTotals.length > uint256(pool.poolOf(RUN).epoch) + 1) {
            annTotals.pop();
            bobTotals.pop();
        }
    }

    function claim(uint256 epoch, bool isAnn) public {
        if (annTotals.length == 1) return;
        epoch = bound(epoch, 1, annTotals.length - 1);
        address who = workerAt(isAnn ? 0 : 1);
        uint256 total = isAnn ? annTotals[epoch] : bobTotals[epoch];
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = isAnn ? leafOf(workerAt(1), bobTotals[epoch]) : leafOf(workerAt(0), annTotals[epoch]);
        uint256 before = token.balanceOf(who);
        uint256 owed = total > pool.claimedBy(RUN, who) ? total - pool.claimedBy(RUN, who) : 0;
        (bool isDone,) = address(pool).call(abi.encodeCall(pool.claim, (RUN, uint64(epoch), who, total, proof)));
        uint48 maturesAt = pool.promiseOf(RUN, uint64(epoch)).maturesAt;
        bool isValid = !isFrozen || maturesAt <= logAnchor.frozenAt(RUN);
        note(isDone == (isValid && maturesAt <= block.timestamp), "claimed too early, or not when due");
        if (isDone) note(token.balanceOf(who) == before + owed, "paid twice, or not all");
        paid += token.balanceOf(who) - before;
    }

    function reclaim(bool isJudge) public {
        address by = isJudge ? judgeAt(0) : funder;
        bool isDue = (pool.isOver(RUN) || pool.isAbandoned(RUN)) && pool.fundedBy(RUN, by) > 0;
        vm.prank(by);
        (bool isDone,) = address(pool).call(abi.encodeCall(pool.reclaim, RUN));
        note(isDone == isDue, "taken back before the run was over, or not after");
    }

    // --- The end of a run, now and then ---

    function close(uint256 dice) public {
        if (dice % 16 != 0 || registry.runOf(RUN).status == IRunRegistry.RunStatus.Closed) return;
        vm.prank(operator);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Closed);
    }

    function freeze(uint256 dice) public {
        uint64 size = logAnchor.latestSize(RUN);
        ILogAnchor.Statement memory anchored = ILogAnchor.Statement(size, tree.rootOf(size), "");
        ILogAnchor.Statement memory first = ILogAnchor.Statement(1, tree.rootOf(1), "");
        (bool isTaken,) = address(logAnchor).call(abi.encodeCall(logAnchor.freeze, (RUN, anchored, first)));
        note(!isTaken, "frozen by heads of one history");
        if (dice % 16 != 0 || isFrozen) return;
        bytes32 root = keccak256("another story");
        logAnchor.freeze(RUN, anchored, ILogAnchor.Statement(size, root, headSignature(size, root)));
        isFrozen = true;
    }

    /// @dev Nobody but the court moves stake, and nobody but the operator promises.
    function steal(uint256 which, address thief) public {
        if (thief == address(court) || thief == operator || thief.code.length > 0) return;
        (bytes32 submission,) = slashAt(which);
        for (uint256 i = 0; i < WORKERS; i++) {
            if (thief == workerAt(i)) return;
        }
        vm.startPrank(thief);
        (bool a,) = address(vault).call(abi.encodeCall(vault.seize, (submission, workerAt(which), 1)));
        (bool b,) = address(vault).call(abi.encodeCall(vault.forfeit, (submission, thief, 0)));
        (bool c,) = address(vault).call(abi.encodeCall(vault.withdraw, workerAt(which)));
        (bool d,) = address(pool).call(abi.encodeCall(pool.receiveForfeit, (RUN, 1)));
        vm.stopPrank();
        note(!(a || b || c || d), "somebody without the right moved value");
    }

    // --- What the invariants look at ---

    function workerAt(uint256 who) public view returns (address) {
        return workers[who % WORKERS];
    }

    function submissionCount() external view returns (uint256) {
        return submissions.length;
    }

    function judgesHold() public view returns (uint256 sum) {
        for (uint256 i = 0; i < JUDGES; i++) {
            sum += token.balanceOf(judgeAt(i)) + vault.positionOf(judgeAt(i)).stake;
        }
    }

    /// @dev What is in nobody's contract.
    function outside() external view returns (uint256 sum) {
        sum = token.balanceOf(address(this)) + token.balanceOf(funder) + token.balanceOf(BURNED);
        for (uint256 i = 0; i < WORKERS; i++) {
            sum += token.balanceOf(workerAt(i));
        }
        for (uint256 i = 0; i < JUDGES; i++) {
            sum += token.balanceOf(judgeAt(i));
        }
    }

    function parts() external view returns (address, address, address, address, address) {
        return (address(token), address(vault), address(court), address(pool), address(logAnchor));
    }

    function slashAt(uint256 which) internal view returns (bytes32 submission, ICourt.Slash memory slash) {
        if (submissions.length == 0) return (submission, slash);
        submission = submissions[which % submissions.length];
        slash = court.slashOf(submission);
    }

    function leafOf(address account, uint256 cumulative) internal pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(account, cumulative))));
    }

    function rootOf(uint256 anns, uint256 bobs) internal view returns (bytes32) {
        (bytes32 a, bytes32 b) = (leafOf(workerAt(0), anns), leafOf(workerAt(1), bobs));
        return a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
    }

    function attempt(bytes memory call_) internal returns (bool isDone) {
        (isDone,) = address(court).call(call_);
    }

    function note(bool isRight, string memory what) internal {
        if (!isRight) broken = what;
    }
}
